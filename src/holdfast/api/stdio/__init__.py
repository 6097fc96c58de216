"""The API of a frontend that starts Holdfast and talks to it by standard input and output (docs/reference/stdio.md)."""
