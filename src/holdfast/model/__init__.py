"""Values and rules of Holdfast: ids, entries, changes, errors, configuration. Pure: no I/O, no framework."""
