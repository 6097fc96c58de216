"""The configuration: its keys and their values, the layers it comes from, and the settings that result."""
