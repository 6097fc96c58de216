"""The one process that works in a session at a time: its lock, its children, and requests from other processes."""
