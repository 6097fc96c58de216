"""What belongs together: store, object store, bucket and home, each known again by what it holds of the other."""
