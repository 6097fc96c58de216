"""The provider `git`: states as commits of a shadow repository beside the user's, which stays as it is (I15)."""
