"""Feeds the interceptor from the system calls of a local process tree."""
