"""Which object of the tree a path of a supervised process means, with that process's root, links and permissions."""
