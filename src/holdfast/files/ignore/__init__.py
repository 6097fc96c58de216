"""Which paths are captured: ignore files and their patterns, exclusions, what is reserved."""
