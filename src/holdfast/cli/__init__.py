"""The commands: parse, call the engine, render. No logic."""
