"""System calls and other means of Linux that the standard library does not have. Each module stands by itself."""
