"""What one session takes from another: a merge, single commands, a replay; and bisection over its states."""
