"""Shells that remember: their commands, what these leave, and the ways back and apart."""
