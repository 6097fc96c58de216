"""Protocols: encoders, decoders and state machines. Pure, no I/O; decoded data is never trusted."""
