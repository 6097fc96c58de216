"""The faces: the same engine for frontends and agents, each by a protocol of its own."""
