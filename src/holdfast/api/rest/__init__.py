"""The engine over HTTP: exports, checkpoints, going back and forth, for several tenants (docs/rest.md)."""
