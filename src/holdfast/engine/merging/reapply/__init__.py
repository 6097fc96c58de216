"""Applying a fork's small changes anew, to what production has made of the same files: a ladder of ways to do that.

`port` says what a rung is, `ladder` goes through them, `check` decides whether an answer is taken; each other module is
one rung (docs/reference/ladder.md).
"""
