"""The end of a step: what it left is noted, unchanged objects are dropped, late writes waited for."""
