"""File systems that Holdfast serves to a kernel: the mounts, the serving loop and the content."""
