"""The data of a session: its journal, its states, and their repair after a kill."""
