"""Contract suites and fakes for implementations of a port. No other part of Holdfast imports this."""
