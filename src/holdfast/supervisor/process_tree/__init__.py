"""The processes of a run: which they are, what they hold open, how all of them are stopped."""
