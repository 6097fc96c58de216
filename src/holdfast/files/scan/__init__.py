"""Scanning a tree: its entries, the changes among them, and their content.

`scanner` is the entry point; `parallel_scan` has a second process scan a large tree from its other end.
"""
