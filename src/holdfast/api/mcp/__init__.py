"""The engine as tools and resources of the Model Context Protocol, for models to work with.

`tools` is the list of what there is. What destroys history, or answers a safeguard, is not among it and must never be:
a client that asks for something must not allow it as well (I9).
"""
