"""Whole directories: copied, moved, exchanged, measured, removed."""
