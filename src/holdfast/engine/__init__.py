"""The use-cases, one module each, over the ports of the rooms below."""
