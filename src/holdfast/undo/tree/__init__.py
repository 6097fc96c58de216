"""Objects of the tree as steps know them: reached below its root, and known again by their signatures."""
