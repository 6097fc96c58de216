"""Putting Holdfast into the configuration of coding agents, taking it out again, and answering their hooks.

What is known of each client is data, a module each (`claude`, `codex`, `gemini`, `cursor`, `opencode`). `editing` says
what it means for the text of a file, `planning` for the files that are there, `writing` puts it on disk, and `hooking`
is what their hooks call.
"""
