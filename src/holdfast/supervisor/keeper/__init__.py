"""The keeper of a workspace: it receives the calls of supervised trees, carries each out, and ends their steps."""
