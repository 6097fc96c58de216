"""The proof that nothing is damaged or missing."""
