"""The keeper's private socket: its requests, its server and its client."""
