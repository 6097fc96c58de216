"""File systems as nodes, names, attributes and handles, independent of the protocol that serves them."""
