"""Finding, making and opening workspaces: the home, the settings, the tree, and the checks before any operation."""
