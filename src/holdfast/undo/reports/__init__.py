"""What is said of steps: what each changed, and which rollbacks were not told yet."""
