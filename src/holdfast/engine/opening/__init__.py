"""Finding, making and opening workspaces: the home, the settings, the tree, and what is so before anything is done."""
