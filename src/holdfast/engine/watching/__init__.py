"""Saving by itself: the watch service."""
