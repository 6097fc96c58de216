"""The undo service in the process that holds the log."""
