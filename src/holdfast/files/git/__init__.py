"""What is read of a repository of Git without Git: its configuration, and whether it holds an object."""
