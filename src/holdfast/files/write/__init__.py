"""Writing to a tree: every change by way of rooted access, atomic, and never over what others wrote meanwhile.

`applier` is the face; `_parallel_write` has a second process write half of a large change.
"""
