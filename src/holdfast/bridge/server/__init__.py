"""The loop that reads requests from the device and answers them, and the threads that do."""
