"""Reads a Git repository without Git: its configuration, and whether it contains an object."""
