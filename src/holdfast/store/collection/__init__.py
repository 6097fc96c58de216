"""What no checkpoint needs any more is found and deleted, whatever others commit meanwhile."""
