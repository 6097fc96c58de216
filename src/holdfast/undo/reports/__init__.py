"""Reports about steps: their changes, and rollbacks that were not reported yet."""
