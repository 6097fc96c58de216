"""Workspaces that are served, each under a name, and their maintenance."""
