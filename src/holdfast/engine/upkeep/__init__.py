"""Retention, collection, verification, the quota, bundles, and what this machine allows."""
