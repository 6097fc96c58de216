"""Where a command runs, on the host as it is or in namespaces of its own (docs/reference/isolation.md), and by whom
(docs/internals/control-channel.md).
"""
