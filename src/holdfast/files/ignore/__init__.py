"""Which paths are captured: ignore files and their patterns, exclusions, reserved paths."""
