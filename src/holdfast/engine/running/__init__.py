"""Commands whose every change can be undone."""
