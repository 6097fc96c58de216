"""Content into packs and large objects, and back out, verified."""
