"""The keeper's private socket: frames, the end of the keeper, and that of who asks."""
