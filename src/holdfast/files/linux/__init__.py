"""System calls and other Linux features missing in the standard library. Each module is independent."""
