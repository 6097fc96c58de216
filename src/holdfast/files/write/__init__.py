"""Writing to a tree: every change by way of rooted access, atomic, and never over what other processes wrote meanwhile.

`applier` is the face; `_parallel_write` has a second process write a part of a large change.
"""
