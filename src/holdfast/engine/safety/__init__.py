"""What a shell command may do, told beforehand from a parse of it. No protection: see docs/reference/classify.md."""
