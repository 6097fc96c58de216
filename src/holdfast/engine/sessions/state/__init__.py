"""What a session is: its journal, the states that come of it, and their repair after a kill."""
