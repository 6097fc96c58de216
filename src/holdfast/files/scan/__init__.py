"""Looking at a tree: what is there, what of it has changed, and what it holds.

`scanner` is the face; `parallel_scan` has a second process look at half of a large tree.
"""
