"""Images of virtual machines."""
