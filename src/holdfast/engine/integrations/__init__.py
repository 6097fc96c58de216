"""Putting Holdfast into the configuration of coding agents, taking it out again, and answering their hooks.

What is known of each client is data, a module each (`claude`, `codex`, `gemini`, `cursor`, `opencode`).
`_config_entries` says what it means for the text of a file, `config_plan` for the files that are there, `_config_files`
puts it on disk, and `hook_handler` is what their hooks call.
"""
