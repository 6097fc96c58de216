"""Commands of a session: the shell that runs one, at a terminal or not, and what the shell hands on to the next."""
