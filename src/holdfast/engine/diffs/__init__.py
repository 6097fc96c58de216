"""What two states differ in, and what is in them."""
