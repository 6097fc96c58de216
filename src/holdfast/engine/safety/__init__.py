"""Predicts the effects of a shell command from a parse of it. No protection: see docs/reference/classify.md."""
