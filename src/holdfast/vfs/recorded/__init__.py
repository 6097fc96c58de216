"""A real directory, each change of which passes the interceptor before it happens."""
