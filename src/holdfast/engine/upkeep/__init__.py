"""Retention, collection, verification, the quota, bundles, and the diagnosis of this machine."""
