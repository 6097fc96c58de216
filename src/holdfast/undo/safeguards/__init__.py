"""Dangers are held until a person answers: thresholds, what a step loses, tickets."""
