"""Looking at a tree: what is there, what of it has changed, and what it holds.

`scanner` is the face; `parallel_scan` has a second process scan a large tree from its other end.
"""
