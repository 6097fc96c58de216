"""What the use-cases answer."""
