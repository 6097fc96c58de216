"""Running commands, on the host directly or in namespaces (docs/reference/isolation.md), and the shim that runs them
(docs/internals/control-channel.md).
"""
