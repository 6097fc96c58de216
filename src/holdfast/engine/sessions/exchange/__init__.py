"""Transfers between sessions: a merge, single commands, a replay; and bisection over states."""
