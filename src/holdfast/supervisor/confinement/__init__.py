"""The preparation of a supervised process: the filter of system calls, Landlock, and the shim that sets both."""
