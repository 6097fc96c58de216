"""What happened to a workspace, and the ways back and forward: checkpoints, restore, undo, redo, recovery."""
