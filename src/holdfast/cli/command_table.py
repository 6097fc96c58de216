"""The list of commands: where each is written, and the few words that the overview says of it."""

from __future__ import annotations

from holdfast.model.fast_typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.cli.command import Command

COMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    "save": {
        "init": ("init_checkpoint", "begin to remember a directory"),
        "checkpoint": ("init_checkpoint", "save its present state now (alias: save)"),
        "watch": ("watch", "save by itself, whenever something has changed"),
    },
    "look": {
        "status": ("status_cat", "what has changed since the last checkpoint"),
        "log": ("log_show", "what happened, newest first: checkpoints, prompts, runs, undos, …"),
        "show": ("log_show", "all about one checkpoint, or another row of the log"),
        "cat": ("status_cat", "the content of a file as it was"),
        "diff": ("diff", "what differs between two states"),
    },
    "go back": {
        "restore": ("restore_undo_redo", "bring the tree, or some paths, back to a checkpoint"),
        "undo": ("restore_undo_redo", "take back the newest change to the tree"),
        "redo": ("restore_undo_redo", "bring back what undo took back"),
    },
    "run": {
        "run": ("run", "run a command whose every change can be taken back"),
        "steps": ("steps_barriers_safeguard", "what such commands did, step by step"),
        "step": ("steps_barriers_safeguard", "group what follows into one step: begin, commit, rollback"),
        "barriers": ("steps_barriers_safeguard", "what others have changed in between"),
        "safeguard": ("steps_barriers_safeguard", "operations that wait for an answer: list, allow, deny"),
    },
    "sessions": {
        "session": ("session.family", "a shell that remembers: start, exec, shell, history, branch, checkout, fork, …"),
        "experiment": ("experiment", "try several things side by side in forks of a session, and keep the best"),
    },
    "agents": {
        "integrate": ("integrate_hook", "configure a coding agent to use Holdfast, or take that back"),
        "hook": ("integrate_hook", "what the hooks of such an agent call"),
    },
    "serve": {
        "mcp": ("mcp", "give it to a model as tools (Model Context Protocol)"),
        "serve": ("serve", "the REST API for other programs, and the upkeep of what it serves"),
        "stdio": ("stdio", "a frontend, by lines of JSON on standard input and output"),
    },
    "copy": {
        "fork": ("fork_export_import", "write a checkpoint out as a workspace of its own"),
        "merge": ("merge", "bring what a fork has done into this workspace"),
        "promote": ("promote", "bring a fork's work to production, built and found healthy first"),
        "mount": ("mount", "look at a checkpoint as a directory, without writing it out"),
        "snapshot": ("snapshot", "what file systems or Git capture: take, list, show, mount, run, discard"),
        "unmount": ("mount", "take away what `mount`, or `fork --mount`, has mounted"),
        "export": ("fork_export_import", "write checkpoints and their ancestors to a file"),
        "import": ("fork_export_import", "take in the checkpoints of such a file"),
    },
    "keep": {
        "forget": ("forget_gc_verify_stats", "drop checkpoints, one by one or by a policy"),
        "gc": ("forget_gc_verify_stats", "delete what no checkpoint needs any more"),
        "verify": ("forget_gc_verify_stats", "prove that nothing is damaged or missing"),
        "stats": ("forget_gc_verify_stats", "what takes the space"),
        "store": ("store", "where everything is kept: info, probe, copy, claim"),
        "doctor": ("doctor", "what this machine, the home and the workspace allow, and why not more"),
        "completion": ("completion", "a completion script for your shell"),
    },
}
"""By group: name → (module of this package, summary)."""

ALIASES = {"save": "checkpoint"}


def names() -> list[str]:
    """Every command's name, in the overview's order."""
    return [name for group in COMMANDS.values() for name in group]


def load(name: str) -> Command:
    """The command called ``name`` (not an alias); imports only the module that holds it. KeyError if there is none."""
    module = next(group[name][0] for group in COMMANDS.values() if name in group)
    return __import__(f"holdfast.cli.{module}", fromlist=("COMMANDS",)).COMMANDS[name]


def load_verb(name: str, family: Command, verb: str) -> Command:
    """One of a family's commands; imports only the module that holds it. KeyError if there is none."""
    assert family.verbs is not None
    module = family.verbs[verb][0]
    return __import__(f"holdfast.cli.{module}", fromlist=("COMMANDS",)).COMMANDS[f"{name} {verb}"]


def every() -> dict[str, Command]:
    """All commands by name, those of families by both words (``session start``); imports all of their modules."""
    found: dict[str, Command] = {}
    for name in names():
        command = found[name] = load(name)
        found |= {f"{name} {verb}": load_verb(name, command, verb) for verb in command.verbs or ()}
    return found


def overview() -> str:
    """What ``holdfast --help`` prints."""
    lines = [
        "usage: holdfast [--home DIR] [-w DIR] [--json] [-q] [-v] COMMAND …",
        "",
        "Gives a directory a memory: checkpoints, a diff between any two of them, undo of anything, forks.",
    ]
    width = max(map(len, names()))
    for title, group in COMMANDS.items():
        lines += ["", f"{title}:", *(f"  {name:<{width}}  {summary}" for name, (_, summary) in group.items())]
    lines += [
        "",
        "options, before or after the command:",
        "  --home DIR           where everything is kept (default: $HOLDFAST_HOME, else the XDG data directory)",
        "  -w, --workspace DIR  a directory in the workspace (default: the current directory)",
        "  --json               print one JSON object on standard output, and nothing else there",
        "  -q, --quiet          say nothing but what was asked for, and errors",
        "  -v, --verbose        say more; show tracebacks of unexpected errors",
        "  --log-level LEVEL    what to log: error, warn, info, debug or trace",
        "  --version            print the version",
        "",
        "A checkpoint is named by its id or the beginning of it, by its label, or from the one that the tree stands on",
        "back: @, @-, @-3. After an undo `holdfast redo` leads to what is ahead of @, or its id from `holdfast log`.",
        "",
        "  holdfast init && holdfast checkpoint -m 'before the agent'",
        "  holdfast diff @",
        "  holdfast undo",
        "",
        "`holdfast COMMAND --help` tells all about one command.",
        "",
        "exit codes: 0 done · 1 failed · 2 wrong usage · 3 no such workspace, checkpoint or path",
        "            4 refused, and says what would force it · 5 something stored is damaged",
    ]
    return "\n".join(lines) + "\n"
