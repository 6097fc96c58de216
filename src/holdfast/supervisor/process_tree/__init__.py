"""The processes of a run: their membership, their open files, and stopping them all."""
