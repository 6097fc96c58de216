"""Records each mutation of a step before it happens, with its preimage."""
