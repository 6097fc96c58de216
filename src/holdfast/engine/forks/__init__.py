"""Lines of work of their own: written out, mounted, and mounts of checkpoints."""
