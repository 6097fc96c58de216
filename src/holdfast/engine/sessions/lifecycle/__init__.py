"""How a session begins as a fork, is deleted, and is swept away when its time is over."""
