"""All that touches a tree: rooted access, atomic replacement, walking with ignore rules, the stat index, watching."""
