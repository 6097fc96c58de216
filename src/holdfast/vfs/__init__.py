"""File systems as nodes, names, attributes and handles, for whatever protocol they are served by."""
