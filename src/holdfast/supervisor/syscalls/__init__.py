"""A system call that waits: its number and arguments, and access to its caller's memory and files."""
