"""Where objects lie: the port, and stores on a disk, in a bucket, encrypted, behind a cache."""
