"""What a supervised process gets before its program: the filter of system calls, Landlock, and the shim that sets
both.
"""
