"""The faces: the engine for programs that speak a protocol. Everything asynchronous is in here."""
