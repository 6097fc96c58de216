"""Trying several things side by side from one state of a session, and keeping the best."""
