"""How processes of Holdfast speak to each other on one machine: private sockets, frames, one request at a time."""
