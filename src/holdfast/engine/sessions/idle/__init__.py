"""Saving a session's state while nothing happens in it."""
