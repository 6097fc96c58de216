"""The web page: the timeline of a workspace, its states and differences, in a browser."""
