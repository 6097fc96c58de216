"""Each mutation of a step is recorded before it happens, and what it would lose is kept."""
