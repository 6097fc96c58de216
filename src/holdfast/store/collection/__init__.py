"""Finds and deletes content that no checkpoint needs any more, whatever others commit meanwhile."""
