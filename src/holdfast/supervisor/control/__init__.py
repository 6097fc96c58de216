"""The keeper's private socket: its frames, its server and its client."""
