"""Contract suites and fakes for those who implement a port. Nothing else in Holdfast imports this."""
