"""Where a command runs, on the host as it is or in namespaces of its own (docs/guide/isolation.md), and by whom
(docs/internals/control-channel.md).
"""
