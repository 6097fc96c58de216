"""Protocols: encoders, decoders and state machines. Pure, no I/O; what they decode is never trusted."""
