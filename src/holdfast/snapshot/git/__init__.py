"""The provider `git`: states as commits of a shadow repository beside the user's, which is not changed (I15)."""
