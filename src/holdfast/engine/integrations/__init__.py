"""Adding Holdfast to the configuration of coding agents, removing it, and answering their hooks.

Each client is described by data, in a module of its own (`claude`, `codex`, `gemini`, `cursor`, `opencode`).
`_config_entries` changes the text of a file, `config_plan` plans the changes of files, `_config_files` writes them, and
the clients' hooks call `hook_handler`.
"""
