"""Starting a command under a keeper: the launcher, the parent of its tree, and what they say to each other."""
