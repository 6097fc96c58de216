"""Shells that remember: sessions, their journals and checkpoints, their forks."""
