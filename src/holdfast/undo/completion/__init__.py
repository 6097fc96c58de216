"""The end of a step: its results are recorded, unchanged objects are dropped, late writes are awaited."""
