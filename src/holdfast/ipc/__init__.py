"""Communication between processes of Holdfast on one machine: private sockets, frames, one request at a time.

`server` answers and `connection` asks; both exchange bodies in the frames of `messages`, which also encodes errors.
`port` makes requests and answers from the signatures of a protocol. `listener` and `private_socket` are the base: they
serve other protocols too, such as HTTP and that of MCP.
"""
