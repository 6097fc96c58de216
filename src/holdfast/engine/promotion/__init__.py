"""Promotion: the work of a fork arrives in production, built and found healthy before anything there changes."""
