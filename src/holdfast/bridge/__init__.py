"""File systems that Holdfast serves to a kernel: what mounts them, the loop that answers, and what they show."""
