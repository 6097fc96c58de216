"""Where a command runs, on the host as it is or in namespaces of its own (docs/isolation.md), and by whom
(docs/control-channel.md).
"""
