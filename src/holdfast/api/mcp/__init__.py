"""The engine as tools and resources of the Model Context Protocol, for models to work with.

`tools` lists them. No tool destroys history or answers a safeguard, and none may ever: a client that causes a held
operation must not be able to allow it (I9).
"""
