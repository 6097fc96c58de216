"""Bringing lines of work together."""
