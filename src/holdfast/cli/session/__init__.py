"""``holdfast session``: one module for a few commands of the family each."""
