"""Starting a command under a keeper: the launcher, the parent of its tree, and their messages."""
