"""The differences between two states, and their contents."""
