"""The keeper's private socket: what it is asked, its server and its client."""
