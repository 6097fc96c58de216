"""Results as JSON objects."""
