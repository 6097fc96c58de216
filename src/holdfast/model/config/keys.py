"""The keys of the settings: values, meaning, and who may set each.

`KEYS` is the list in docs/reference/configuration.md. Only code that parses or completes values needs it.
"""

from __future__ import annotations

from typing import Literal

from holdfast.model.config.settings import DAY, GIB, HOUR, KIB, MIB
from holdfast.model.fast_namedtuple import NamedTuple

Kind = Literal["size", "duration", "age", "integer", "ratio", "text", "location", "patterns", "texts", "switch"]
Trust = Literal["yes", "lower", "no"]


class Key(NamedTuple):
    """One setting, with its values and its meaning."""

    kind: Kind
    meaning: str
    workspace: Trust = "no"
    """Whether the workspace's own file may set it. ``lower``: only below the value that holds without the file."""
    least: float = 0
    most: float = (1 << 55) - 1
    choices: tuple[str, ...] = ()
    pattern: str = ""
    """For a text, and each of several: a regular expression that all of it matches."""
    expected: str = ""
    """For the message: a description of matching texts; empty: the message shows the pattern."""


_VARIABLES = (
    r"[^\s=$*]+\*?|\*",
    "the name of a variable, whose value is taken from the environment of the command; `*` may stand for its end",
)


KEYS: dict[str, Key] = {
    "capture.max_file_bytes": Key("size", "larger files are listed, not captured", workspace="lower", least=1),
    "capture.exclude": Key(
        "patterns",
        "files to leave out",
        workspace="yes",
    ),
    "capture.credentials": Key("switch", "capture known files of credentials (docs/reference/checkpoint.md#secrets)"),
    "capture.warn_files": Key("integer", "warn before a first checkpoint of more files; 0: never", "yes"),
    "capture.warn_bytes": Key("size", "warn before a first checkpoint of more bytes; 0: never", "yes"),
    "store.url": Key("location", "the place of the objects; empty: in the home"),
    "store.max_bytes": Key(
        "size",
        "the quota of the store: at it Holdfast thins out automatic checkpoints, then refuses new ones, except "
        "(with a warning) those of restore, undo and redo; 0: none",
    ),
    "store.pack_bytes": Key("size", "the size at which a new pack begins", least=MIB, most=GIB),
    "store.tenant": Key(
        "text",
        "the part of the object store that this store uses",
        pattern=r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}",
    ),
    "store.catalog": Key(
        "text",
        "the place of the catalog: `postgresql://user@host/database` (docs/reference/postgresql.md); empty: in the "
        "home",
    ),
    "store.connections": Key(
        "integer", "the most connections of a process to a catalog on a server", least=1, most=1000
    ),
    "store.options": Key("texts", "options of a bucket, as `name=value` (docs/reference/store.md#buckets)"),
    "store.timeout": Key("duration", "give up a request to a bucket that takes longer", least=0.1, most=HOUR),
    "store.retries": Key("integer", "how often to repeat a request after a passing fault", most=100),
    "store.parallel": Key("integer", "how many parts of a large object to send at once", least=1, most=64),
    "store.cache_bytes": Key("size", "how much of a bucket's objects to keep in the home; 0: none"),
    "store.encryption_key": Key(
        "text",
        "the place of the key: `env:NAME`, `file:PATH` or `command:WORDS` (docs/reference/store.md#encryption); "
        "empty: no encryption",
    ),
    "store.old_keys": Key("texts", "the places of keys of older objects"),
    "lock.timeout": Key("duration", "how long to wait for another process", most=DAY),
    "watch.debounce": Key("duration", "save when nothing has changed for this long", "yes", most=DAY),
    "watch.max_interval": Key("duration", "save at the latest this long after a change", "yes", least=1, most=30 * DAY),
    "watch.max_per_hour": Key("integer", "save no more often than this", workspace="lower", least=1, most=3600),
    "watch.backend": Key(
        "text", "the means to notice changes", "yes", choices=("auto", "fanotify", "inotify", "polling")
    ),
    "watch.poll_interval": Key("duration", "how often polling looks for changes", "yes", least=0.5, most=DAY),
    "watch.answer_timeout": Key(
        "duration",
        "how long a command waits for a sign of life from the watcher before it works without it",
        workspace="lower",
        least=0.05,
        most=3600,
    ),
    "watch.full_walk_interval": Key(
        "duration", "how often to scan the whole tree in any case", "yes", least=60, most=30 * DAY
    ),
    "retention.keep_all": Key("age", "until this age every automatic checkpoint is kept; 0: skipped"),
    "retention.per_ten_minutes": Key("age", "until this age one in ten minutes is kept; 0: skipped"),
    "retention.hourly": Key("age", "until this age one an hour is kept; 0: skipped"),
    "retention.daily": Key("age", "until this age one a day is kept; 0: for ever"),
    "retention.rescue": Key("age", "until this age every rescue checkpoint is kept; 0: skipped"),
    "retention.interval": Key("duration", "how often `watch` thins out", least=60),
    "gc.grace": Key("duration", "unused content is deleted after this long"),
    "gc.rewrite_ratio": Key("ratio", "rewrite a pack when this part of it is unused", most=1),
    "files.uid": Key(
        "integer",
        "the owner of restored and forked files; -1: that of the workspace's root",
        least=-1,
        most=2**32 - 2,
    ),
    "files.gid": Key(
        "integer",
        "the group of restored and forked files; -1: that of the workspace's root",
        least=-1,
        most=2**32 - 2,
    ),
    "undo.max_log_bytes": Key("size", "the most bytes of the undo log; beyond that it forgets the oldest steps"),
    "undo.max_steps": Key(
        "integer",
        "the most runs in the undo log (a step of no run counts as one); beyond that it forgets the oldest",
        least=1,
    ),
    "undo.max_step_bytes": Key(
        "size", "a step that would copy more continues without protection, or is held by a safeguard"
    ),
    "undo.stop_timeout": Key(
        "duration",
        "`undo --run --stop` kills processes that have not ended this long after SIGTERM",
        least=0.1,
        most=HOUR,
    ),
    "undo.outside": Key(
        "text",
        "edits by other processes: `barrier` stops undo there, `warn` only lists the files that undo overwrites, "
        "`lock` is impossible, so refused",
        choices=("barrier", "warn", "lock"),
    ),
    "safeguard.preset": Key(
        "text",
        "`guard` asks before a step has lost 50 files or 10 MB, and before changes that cannot be undone",
        choices=("off", "guard"),
    ),
    "safeguard.deletes": Key(
        "integer", "ask before a step has lost this many files; 0: never; -1: by the preset", least=-1
    ),
    "safeguard.overwrite_bytes": Key(
        "integer",
        "ask before a step has lost this many bytes of files; 0: never; -1: by the preset",
        least=-1,
    ),
    "safeguard.rename_over": Key(
        "integer", "1: ask before a rename replaces a file; 0: never; -1: by the preset", least=-1, most=1
    ),
    "safeguard.timeout": Key("duration", "deny an operation that gets no answer within this time", least=1, most=DAY),
    "safeguard.notify": Key(
        "texts",
        "the command to start when a safeguard waits (docs/reference/safeguard.md#notification)",
    ),
    "isolation.level": Key(
        "text",
        "where `run` runs a command (docs/reference/isolation.md)",
        choices=("none", "namespace", "vm"),
    ),
    "isolation.network": Key(
        "text",
        "isolated: the host's network, none, or what `allow` and `dns` name",
        choices=("open", "disabled", "allow"),
    ),
    "isolation.allow": Key("texts", "with the network `allow`: addresses and ranges, with or without a port"),
    "isolation.dns": Key("texts", "with the network `allow`: addresses of name servers"),
    "isolation.hidden": Key("texts", "with namespaces: paths to hide; `~` is the user's directory"),
    "isolation.visible": Key(
        "texts", "with namespaces: credentials that stay visible (docs/reference/isolation.md#credentials)"
    ),
    "isolation.writable": Key(
        "texts", "with namespaces: writable paths beside the workspace; changes there cannot be undone"
    ),
    "isolation.tmp": Key(
        "text",
        "with namespaces: its own `/tmp` and `/var/tmp`, or the host's",
        choices=("own", "shared"),
    ),
    "isolation.environment": Key(
        "texts",
        "isolated: more variables to let through; `LC_*` stands for several",
        pattern=_VARIABLES[0],
        expected=_VARIABLES[1],
    ),
    "isolation.memory": Key(
        "size", "with namespaces: the most memory of a command (docs/reference/isolation.md#limits); 0: any amount"
    ),
    "isolation.processes": Key(
        "integer", "with namespaces: the most processes and threads of a command; 0: any number", most=1 << 22
    ),
    "isolation.disk": Key(
        "size",
        "with namespaces: the most bytes in each of its own temporary directories, and in each file that it writes; "
        "0: any amount",
    ),
    "vm.image": Key(
        "text",
        "the image that a virtual machine's disk starts from (docs/reference/vm.md#images)",
        pattern=r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}",
    ),
    "vm.mode": Key(
        "text",
        "whether the disk of a workspace's machine stays, or goes with each run",
        choices=("persistent", "ephemeral"),
    ),
    "vm.memory": Key("size", "memory of a machine", least=128 * MIB, most=1 << 40),
    "vm.cpus": Key("integer", "processors of a machine", least=1, most=64),
    "vm.disk": Key(
        "size",
        "the most that a `persistent` disk holds; an existing one keeps its size",
        least=64 * MIB,
        most=1 << 44,
    ),
    "vm.environment": Key(
        "texts",
        "variables that commands in a machine get from here; `LC_*` stands for several",
        pattern=_VARIABLES[0],
        expected=_VARIABLES[1],
    ),
    "vm.files": Key(
        "texts",
        "files to copy into a machine, to the same place in its user's directory (`~`) or its root",
        pattern=r"(/|~[^/]*/).+",
        expected="the path of a file from `/` or from `~/`",
    ),
    "vm.filesystem": Key(
        "text",
        "how a machine sees the workspace; `auto` is virtiofs",
        choices=("auto", "virtiofs", "9p"),
    ),
    "vm.start_timeout": Key(
        "duration",
        "the most time for a machine to start, without waits for a busy processor",
        least=1,
        most=HOUR,
    ),
    "snapshot.provider": Key(
        "text",
        "the provider of writable copies (docs/reference/snapshot.md); `auto`: the best one",
        choices=("auto", "btrfs", "zfs", "overlay", "reflink", "git", "holdfast", "copy"),
    ),
    "snapshot.directory": Key(
        "text",
        "where the provider `holdfast` makes forks: an absolute path, or with `~`; empty: beside the home, `-forks` "
        "added to its name",
        pattern=r"|[/~].*",
    ),
    "snapshot.max_copy_bytes": Key(
        "size",
        "the largest workspace to copy whole, where copies share no blocks with it; 0: no limit",
    ),
    "git.include_untracked": Key(
        "text", "hold files that are neither tracked nor ignored in snapshots by Git", choices=("no", "yes")
    ),
    "git.include_conflicts": Key(
        "text",
        "take snapshots by Git also in the middle of a merge, a rebase or the like, with the index's conflicts",
        choices=("no", "yes"),
    ),
    "git.trust_local_filters": Key(
        "text",
        "run filters that only a repository's own configuration defines: commands of its author",
        choices=("no", "yes"),
    ),
    "session.shell": Key("text", "the shell of a new session", choices=("bash", "sh", "zsh")),
    "session.timeout": Key("duration", "end a command that takes longer; 0: never", most=30 * DAY),
    "session.max_output_bytes": Key(
        "size",
        "how much of each output stream of a command to keep: beginning and end",
        least=KIB,
        most=16 * MIB,
    ),
    "session.supervised": Key("switch", "record a new session's commands as steps, which `undo` takes back exactly"),
    "session.commands": Key("integer", "save a session's state after this many commands", least=1, most=10_000),
    "session.idle": Key(
        "duration",
        "save it also when idle for this long",
        most=DAY,
    ),
    "session.min_interval": Key("duration", "the least time between two saved states", most=DAY),
    "session.max_journal": Key(
        "integer", "save it in any case at this many entries in its journal", least=1, most=10_000
    ),
    "session.max_journal_bytes": Key(
        "size", "save it in any case at this many bytes of journal, compressed", least=64 * KIB, most=64 * MIB
    ),
    "session.max_checkpoints": Key(
        "integer",
        "a session keeps the trees of this many states; beyond that it drops the oldest automatic ones",
        least=2,
        most=100_000,
    ),
    "session.max_history_bytes": Key(
        "size",
        "the most stored bytes of a session's states, commands and output; beyond that the oldest without a tree go; "
        "0: no limit",
    ),
    "session.max_forks": Key("integer", "the most forks of a session", most=10_000),
    "session.max_parallel": Key("integer", "the most attempts of an experiment at once", least=1, most=1000),
    "session.fork_ttl": Key("age", "delete a fork without a parent after this idle time"),
    "session.hot": Key("age", "until this age a saved state is in the catalog, later in the object store"),
    "session.warm": Key("age", "until this age it stays there, if `cold_url` is set"),
    "session.cold_url": Key("location", "the place of older states; empty: they stay where they are"),
    "promote.setup": Key("texts", "the command that fetches dependencies for the build", "yes"),
    "promote.build": Key("texts", "the command that builds", "yes"),
    "promote.start": Key("texts", "the command that starts the result; `{port}`, and `PORT`, is a free port", "yes"),
    "promote.health": Key("texts", "the check that the result works: a URL on this machine, or a command", "yes"),
    "promote.restart": Key("texts", "the command to run in production after the swap, with all rights"),
    "promote.timeout": Key("duration", "the most time of setup, build and restart, each", "lower", least=0.1, most=DAY),
    "promote.health_timeout": Key(
        "duration", "the most time from start until the health check succeeds", "yes", least=0.1, most=DAY
    ),
    "promote.health_interval": Key("duration", "how often to repeat the health check", "yes", least=0.05, most=HOUR),
    "promote.memory": Key("size", "the most memory of each command with all its processes; 0: any amount"),
    "promote.max_output_bytes": Key("size", "how much output of each to keep: beginning and end", least=KIB, most=GIB),
    "promote.isolation": Key(
        "text",
        "where the commands run (docs/reference/promote.md#where-the-commands-run); "
        "`auto`: in namespaces where possible",
        choices=("auto", "namespace", "none"),
    ),
    "promote.network": Key("text", "with namespaces: the host's network, or none", choices=("open", "disabled")),
    "promote.show": Key(
        "texts",
        "with namespaces: hidden credentials and caches that the commands see, read-only",
    ),
    "promote.provider": Key(
        "text",
        "the provider of the copy (docs/reference/promote.md#the-copy); `auto`: the best one",
        choices=("auto", "btrfs", "reflink", "copy"),
    ),
    "promote.tries": Key("integer", "how often to plan anew when production has changed", least=1, most=100),
    "promote.wait": Key("duration", "how long to wait for another promotion to the same production", most=DAY),
    "hooks.before_checkpoint": Key(
        "texts",
        "a command before a session saves a state; its failure prevents all but automatic saving",
    ),
    "hooks.after_checkpoint": Key("texts", "a command after it"),
    "hooks.before_fork": Key("texts", "a command before a session is forked; its failure prevents that"),
    "hooks.after_fork": Key("texts", "a command after it"),
    "hooks.before_branch": Key("texts", "a command before a session's state gets a name; its failure prevents that"),
    "hooks.after_branch": Key("texts", "a command after it"),
    "hooks.timeout": Key(
        "duration",
        "a hook that takes longer is ended, and has failed; where `watch` saves an idle session, a third of "
        "`lock.timeout` is the limit, if that is less",
        least=0.1,
        most=DAY,
    ),
    "safety.programs": Key(
        "texts",
        "levels of programs, as `name=level`; they override the built-in ones (docs/reference/classify.md)",
        pattern=r"[^=\s]+=(safe|changes|risky|unknown|dangerous)",
    ),
    "agent.command": Key(
        "texts",
        "the command that `agent.prompt` runs; `{prompt}` stands for the prompt, which is else on its standard input",
    ),
    "merge.ladder": Key(
        "texts",
        "the rungs that merge a file changed on both sides, first to last, of `command`, `queue`, `structure`, `text`, "
        "`person` (docs/reference/ladder.md)",
        pattern="command|queue|structure|text|person",
    ),
    "merge.command": Key("texts", "the agent of the rung `command`"),
    "merge.timeout": Key("duration", "the most time of that agent for one change", least=0.1, most=DAY),
    "merge.total_timeout": Key("duration", "its most time for all changes of a merge", least=0.1, most=7 * DAY),
    "merge.calls": Key("integer", "how many changes it gets at once, each in its own process", least=1, most=64),
    "merge.max_bytes": Key("size", "a larger file waits for a person", least=KIB, most=16 * MIB),
    "merge.lease": Key(
        "duration", "how long a change from the queue belongs to the agent that took it", least=1, most=DAY
    ),
    "merge.deadline": Key(
        "duration", "a change that waits longer in the queue goes to the next rung", least=1, most=30 * DAY
    ),
    "merge.queue_entries": Key(
        "integer",
        "the most changes in the queue; more go to the next rung",
        least=1,
        most=100_000,
    ),
    "merge.queue_bytes": Key(
        "size",
        "the most bytes of all of them; more go to the next rung",
        least=MIB,
        most=64 * GIB,
    ),
    "identity.author": Key("text", "the author of checkpoints, if neither a flag nor the caller names one"),
    "serve.listen": Key("text", "the address and port of the API"),
    "serve.threads": Key("integer", "the most requests at once", least=1, most=256),
    "serve.watchers": Key("integer", "the most exports to maintain at once", least=1, most=256),
    "serve.poll_interval": Key(
        "duration", "how often to scan an export whose changes the system does not report", least=0.5, most=DAY
    ),
    "serve.max_body_bytes": Key("size", "the largest body of a request", least=KIB, most=GIB),
    "serve.request_timeout": Key(
        "duration",
        "the most time for a request to arrive, and the most to work on it",
        least=1,
        most=DAY,
    ),
    "serve.requests_per_minute": Key(
        "integer", "the most requests of a token; an address without a valid token has a tenth", least=10
    ),
    "serve.max_connections": Key("integer", "the most connections at once", least=1, most=65536),
    "serve.max_streams": Key("integer", "how many of them may listen to events", least=0, most=65536),
    "serve.keep_answers": Key("age", "how long to keep the answer to a request with an `Idempotency-Key`", least=60),
    "serve.hosts": Key("texts", "names of hosts that requests may have, besides loopback and the listening address"),
    "serve.origins": Key("texts", "origins of pages that may send requests, such as `https://shop.example`"),
    "serve.end_timeout": Key("duration", "how long current requests may take to end when the server stops", most=3600),
    "serve.promotions": Key("integer", "the most promotions at once; others wait", least=1, most=64),
    "serve.session_commands": Key(
        "switch", "tokens with all rights may run commands in sessions, as the server's user and not isolated"
    ),
}
