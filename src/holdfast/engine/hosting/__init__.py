"""Working directories of a host: their commands, files and events."""
