"""The history of a workspace, and moving in it: checkpoints, restore, undo, redo, recovery."""
