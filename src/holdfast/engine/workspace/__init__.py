"""The public face: one workspace, or a whole home, and everything that can be done with it."""
