"""Undoing or redoing a step: record by record, durably, across interruptions."""
