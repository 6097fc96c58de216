"""Undo of anything: every mutation of a tree passes the interceptor, which journals what reverses it."""
