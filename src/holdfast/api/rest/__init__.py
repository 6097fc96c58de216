"""The engine over HTTP: exports, checkpoints, going back and forth, for several tenants (docs/reference/rest.md)."""
