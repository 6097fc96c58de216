"""Other processes: children that are run to their end, helpers that go on, their environments, and the end of all."""
