"""How processes of Holdfast speak to each other on one machine: private sockets, frames, one request at a time.

`server` answers and `connection` asks; both exchange bodies in the frames of `messages`, which also says how an error
travels. `port` makes requests and answers from the signatures of a protocol. `listener` and `private_socket` are what
lies below: they serve other protocols too, such as HTTP and that of MCP.
"""
