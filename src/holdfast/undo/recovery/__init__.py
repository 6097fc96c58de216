"""Finishes or rolls back the unfinished work of a killed keeper."""
