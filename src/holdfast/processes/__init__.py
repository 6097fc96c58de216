"""Processes of our own: workers, modules that run by themselves, and their end by a signal."""
