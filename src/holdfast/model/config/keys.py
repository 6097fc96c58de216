"""The keys of the settings: what the values of each are, what it means, and who may set it.

`KEYS` is the table that docs/reference/configuration.md shows. Only who reads or offers a value needs it.
"""

from __future__ import annotations

from typing import Literal

from holdfast.model.config.settings import DAY, GIB, HOUR, KIB, MIB
from holdfast.model.fast_namedtuple import NamedTuple

Kind = Literal["size", "duration", "age", "integer", "ratio", "text", "location", "patterns", "texts", "switch"]
Trust = Literal["yes", "lower", "no"]


class Key(NamedTuple):
    """One setting: what its values are, and what it means."""

    kind: Kind
    meaning: str
    workspace: Trust = "no"
    """May the workspace's own file set it? ``lower``: only to less than what holds without that file."""
    least: float = 0
    most: float = (1 << 55) - 1
    choices: tuple[str, ...] = ()
    pattern: str = ""
    """For a text, and each of several: a regular expression that all of it matches."""


KEYS: dict[str, Key] = {
    "capture.max_file_bytes": Key(
        "size", "a larger file is not captured, and listed as such", workspace="lower", least=1
    ),
    "capture.exclude": Key(
        "patterns",
        "what is not captured, as lines of a `.gitignore` (without `!`); the patterns of all places add up",
        workspace="yes",
    ),
    "capture.credentials": Key(
        "switch", "whether files of credentials, by their exact names (docs/guide/capture.md), are captured"
    ),
    "capture.warn_files": Key("integer", "warn before a first checkpoint of more files than this; 0: never", "yes"),
    "capture.warn_bytes": Key("size", "warn before a first checkpoint of more bytes than this; 0: never", "yes"),
    "store.url": Key("location", "where objects are kept: a directory or a URL; empty: in the home"),
    "store.max_bytes": Key(
        "size",
        "the quota of the store: at it, old checkpoints make room, then new ones are refused, except those that a "
        "restore, an undo or a redo makes (with a warning); 0: none",
    ),
    "store.pack_bytes": Key("size", "a pack that has grown to this is closed and the next begun", least=MIB, most=GIB),
    "store.tenant": Key(
        "text", "the part of the object store that is ours", pattern=r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}"
    ),
    "store.catalog": Key(
        "text", "where the catalog is: `postgresql://user@host/database` (docs/guide/postgresql.md); empty: in the home"
    ),
    "store.connections": Key(
        "integer", "a process has no more connections to a catalog elsewhere than this", least=1, most=1000
    ),
    "store.options": Key(
        "texts", "what a bucket's service wants to know, each as `name=value` (docs/guide/object-stores.md)"
    ),
    "store.timeout": Key("duration", "a request to a bucket that takes longer is given up", least=0.1, most=HOUR),
    "store.retries": Key("integer", "how often one that failed for a reason that may pass is repeated", most=100),
    "store.parallel": Key("integer", "so many parts of a large object are sent at once", least=1, most=64),
    "store.cache_bytes": Key(
        "size", "so much of a bucket's objects is kept in the home, to be read without a request; 0: nothing"
    ),
    "store.encryption_key": Key(
        "text",
        "where the key is that objects are encrypted with before they are stored: `env:NAME`, `file:PATH` or "
        "`command:WORDS`; empty: they are not",
    ),
    "store.old_keys": Key("texts", "where keys are that older objects are encrypted with"),
    "lock.timeout": Key("duration", "how long to wait for another process before giving up", most=DAY),
    "watch.debounce": Key("duration", "save when nothing has changed for this long", "yes", most=DAY),
    "watch.max_interval": Key("duration", "save at the latest this long after a change", "yes", least=1, most=30 * DAY),
    "watch.max_per_hour": Key("integer", "save no more often than this", workspace="lower", least=1, most=3600),
    "watch.backend": Key("text", "how changes are noticed", "yes", choices=("auto", "fanotify", "inotify", "polling")),
    "watch.poll_interval": Key(
        "duration", "how often the polling backend looks for changes", "yes", least=0.5, most=DAY
    ),
    "watch.answer_timeout": Key(
        "duration",
        "how long a command waits for a sign of life from the watcher before it does its work without it",
        workspace="lower",
        least=0.05,
        most=3600,
    ),
    "watch.full_walk_interval": Key(
        "duration", "how often to look at the whole tree although nothing was noticed", "yes", least=60, most=30 * DAY
    ),
    "retention.keep_all": Key("age", "until this age every checkpoint is kept"),
    "retention.per_ten_minutes": Key("age", "until this age one in ten minutes is kept"),
    "retention.hourly": Key("age", "until this age one an hour is kept"),
    "retention.daily": Key("age", "until this age one a day is kept; 0: for ever"),
    "retention.rescue": Key("age", "until this age no checkpoint that a restore took first is dropped"),
    "retention.interval": Key("duration", "how often `watch` thins out", least=60),
    "gc.grace": Key("duration", "what nothing uses is deleted after this long"),
    "gc.rewrite_ratio": Key("ratio", "a pack of which this part is dead is written anew", most=1),
    "files.uid": Key(
        "integer",
        "the owner of what restores and forks make; -1: that of the workspace's root",
        least=-1,
        most=2**32 - 2,
    ),
    "files.gid": Key(
        "integer",
        "the group of what restores and forks make; -1: that of the workspace's root",
        least=-1,
        most=2**32 - 2,
    ),
    "undo.max_log_bytes": Key("size", "steps and preimages of more bytes than this: the oldest steps are forgotten"),
    "undo.max_steps": Key("integer", "more runs than this (a step of no run is one): the oldest is forgotten", least=1),
    "undo.max_step_bytes": Key(
        "size", "a step that would copy more bytes than this goes on without protection, or is held (see safeguard)"
    ),
    "undo.stop_timeout": Key(
        "duration", "`undo --run --stop` kills what has not ended this long after SIGTERM", least=0.1, most=HOUR
    ),
    "undo.outside": Key(
        "text",
        "what others change: `barrier` stops undo there, `warn` only lists what undo overwrites, `lock` cannot be had",
        choices=("barrier", "warn", "lock"),
    ),
    "safeguard.preset": Key(
        "text",
        "`guard` asks before a step has lost 50 files or 10 MB, and before changes that could not be undone",
        choices=("off", "guard"),
    ),
    "safeguard.deletes": Key(
        "integer", "ask when a step is about to have lost this many files; 0: never; -1: as the preset has it", least=-1
    ),
    "safeguard.overwrite_bytes": Key(
        "integer",
        "ask when a step is about to have lost this many bytes of files; 0: never; -1: as the preset has it",
        least=-1,
    ),
    "safeguard.rename_over": Key(
        "integer", "1: ask before a rename replaces a file; 0: never; -1: as the preset has it", least=-1, most=1
    ),
    "safeguard.timeout": Key("duration", "an operation that nobody answers for this long is denied", least=1, most=DAY),
    "safeguard.notify": Key(
        "texts",
        "a command that says that a safeguard waits, word by word (docs/guide/run.md); empty: there is none",
    ),
    "isolation.level": Key(
        "text",
        "where `run` runs a command: as any program of the user's, or in namespaces of its own",
        choices=("none", "namespace"),
    ),
    "isolation.network": Key(
        "text",
        "with namespaces: the host's network, none, or what `allow` and `dns` name",
        choices=("open", "disabled", "allow"),
    ),
    "isolation.allow": Key("texts", "with the network `allow`: addresses and ranges, either with a port"),
    "isolation.dns": Key("texts", "with the network `allow`: addresses of name servers"),
    "isolation.hidden": Key("texts", "with namespaces: paths that are not visible; `~` is the user's directory"),
    "isolation.visible": Key(
        "texts", "with namespaces: places of credentials that are visible, of those that are hidden by themselves"
    ),
    "isolation.writable": Key(
        "texts", "with namespaces: paths that can be written to beside the workspace, where nothing is undone"
    ),
    "isolation.tmp": Key(
        "text",
        "with namespaces: `/tmp` and `/var/tmp` of its own, or the host's",
        choices=("own", "shared"),
    ),
    "isolation.environment": Key(
        "texts", "with namespaces: variables that are let through besides the usual ones; `LC_*` stands for several"
    ),
    "isolation.memory": Key(
        "size", "with namespaces: so much memory the command has (docs/guide/isolation.md#limits); 0: any amount"
    ),
    "isolation.processes": Key(
        "integer", "with namespaces: so many processes and threads the command has at once; 0: any number", most=1 << 22
    ),
    "isolation.disk": Key(
        "size",
        "with namespaces: so much each of its own temporary directories holds, and each file that it writes; 0: any "
        "amount",
    ),
    "snapshot.provider": Key(
        "text",
        "what makes writable copies of a workspace; `auto`: the best that can be had",
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
        "a workspace is copied whole, where copies share no blocks with it, if it is no larger; 0: whatever it is",
    ),
    "git.include_untracked": Key(
        "text", "whether snapshots by Git hold files that are neither tracked nor ignored", choices=("no", "yes")
    ),
    "git.include_conflicts": Key(
        "text",
        "whether snapshots by Git are also taken in the middle of a merge, a rebase or the like, with the conflicts of "
        "the index",
        choices=("no", "yes"),
    ),
    "git.trust_local_filters": Key(
        "text",
        "whether filters that only a repository's own configuration defines are run: commands of whoever wrote it",
        choices=("no", "yes"),
    ),
    "session.shell": Key("text", "the shell of a new session", choices=("bash", "sh", "zsh")),
    "session.timeout": Key("duration", "a command of a session that takes longer is ended; 0: none is", most=30 * DAY),
    "session.max_output_bytes": Key(
        "size",
        "of each output stream of a command so much is kept: beginning and end",
        least=KIB,
        most=16 * MIB,
    ),
    "session.supervised": Key(
        "switch", "whether what a new session's commands change is recorded as steps, which `undo` takes back exactly"
    ),
    "session.commands": Key("integer", "a session's state is saved after so many commands", least=1, most=10_000),
    "session.idle": Key(
        "duration",
        "and when nothing was done in it for so long: by its shell, by `watch`, or by its next command",
        most=DAY,
    ),
    "session.min_interval": Key("duration", "but not so soon after the last time", most=DAY),
    "session.max_journal": Key(
        "integer", "whatever else holds, it is saved at so many entries in its journal", least=1, most=10_000
    ),
    "session.max_journal_bytes": Key("size", "and at so many bytes, compressed", least=64 * KIB, most=64 * MIB),
    "session.max_checkpoints": Key(
        "integer",
        "a session holds the trees of so many states: more let go of the oldest that were saved by themselves",
        least=2,
        most=100_000,
    ),
    "session.max_history_bytes": Key(
        "size",
        "of a session's states, commands and output so much is kept as it is stored; beyond it the oldest that hold no "
        "tree are dropped; 0: none are",
    ),
    "session.max_forks": Key("integer", "a session has no more forks than this", most=10_000),
    "session.max_parallel": Key("integer", "no more attempts of an experiment run at once", least=1, most=1000),
    "session.fork_ttl": Key("age", "a fork whose parent was deleted goes when nothing was done in it for so long"),
    "session.hot": Key("age", "until this age a saved state of a session is in the catalog, then in the object store"),
    "session.warm": Key("age", "until this age it stays there, if there is a `cold_url`"),
    "session.cold_url": Key(
        "location", "where older ones are kept: a directory or a URL; empty: they stay where they are"
    ),
    "promote.setup": Key("texts", "what prepares a build, word by word: it fetches dependencies", "yes"),
    "promote.build": Key("texts", "what builds, word by word", "yes"),
    "promote.start": Key("texts", "what starts the result; `{port}`, and `PORT`, is a port that is free", "yes"),
    "promote.health": Key(
        "texts", "what says that it is well: the URL of something on this machine, or a command, word by word", "yes"
    ),
    "promote.restart": Key("texts", "what is run in production after the swap, with all rights: it restarts what runs"),
    "promote.timeout": Key("duration", "setup, build and restart may each take so long", "lower", least=0.1, most=DAY),
    "promote.health_timeout": Key(
        "duration", "what was started has to be well within this", "yes", least=0.1, most=DAY
    ),
    "promote.health_interval": Key("duration", "how often that is asked", "yes", least=0.05, most=HOUR),
    "promote.memory": Key("size", "what one of them may take with all of its processes; 0: any amount"),
    "promote.max_output_bytes": Key(
        "size", "of the output of each so much is kept: beginning and end", least=KIB, most=GIB
    ),
    "promote.isolation": Key(
        "text",
        "where they run: in namespaces of their own, or as any program; `auto`: in namespaces where there can be any",
        choices=("auto", "namespace", "none"),
    ),
    "promote.network": Key("text", "with namespaces: the host's network, or none", choices=("open", "disabled")),
    "promote.show": Key(
        "texts",
        "with namespaces: places of credentials, and caches, that they see, read-only, of those that are hidden by "
        "themselves",
    ),
    "promote.provider": Key(
        "text",
        "what makes the copy that it is built in; `auto`: the best one",
        choices=("auto", "btrfs", "reflink", "copy"),
    ),
    "promote.tries": Key(
        "integer", "so often a promotion is planned anew as production has changed", least=1, most=100
    ),
    "promote.wait": Key("duration", "how long a promotion waits for another one to the same production", most=DAY),
    "hooks.before_checkpoint": Key(
        "texts", "what is run, word by word, before a session's state is saved; one that fails refuses that"
    ),
    "hooks.after_checkpoint": Key("texts", "what is run after that"),
    "hooks.before_fork": Key("texts", "what is run before a session is forked; one that fails refuses that"),
    "hooks.after_fork": Key("texts", "what is run after that"),
    "hooks.before_branch": Key(
        "texts", "what is run before a session's state is given a name; one that fails refuses that"
    ),
    "hooks.after_branch": Key("texts", "what is run after that"),
    "hooks.timeout": Key(
        "duration",
        "a hook that takes longer is ended, and has failed; where `watch` saves a session that is idle, a third of "
        "`lock.timeout` is enough for that",
        least=0.1,
        most=DAY,
    ),
    "safety.programs": Key(
        "texts",
        "what programs may do, as `name=level`; it goes before what is known of them (docs/guide/safety.md)",
        pattern=r"[^=\s]+=(safe|changes|risky|unknown|dangerous)",
    ),
    "agent.command": Key(
        "texts",
        "what `agent.prompt` runs, word by word; `{prompt}` stands for the prompt, which is else on its standard input",
    ),
    "merge.ladder": Key(
        "texts",
        "who applies changes anew to a file that both sides have changed, the first one first: `command`, `queue`, "
        "`structure`, `text`, `person`",
        pattern="command|queue|structure|text|person",
    ),
    "merge.command": Key("texts", "the agent of the rung `command`, word by word; empty: there is none"),
    "merge.timeout": Key("duration", "how long it may take for one change", least=0.1, most=DAY),
    "merge.total_timeout": Key(
        "duration", "how long it may take for all changes of one merge together", least=0.1, most=7 * DAY
    ),
    "merge.calls": Key("integer", "so many changes it is given side by side, each to a process", least=1, most=64),
    "merge.max_bytes": Key("size", "a file that is larger is for a person", least=KIB, most=16 * MIB),
    "merge.lease": Key("duration", "how long a change that was taken from the queue is its taker's", least=1, most=DAY),
    "merge.deadline": Key(
        "duration", "a change that waits in the queue for longer is for the next rung", least=1, most=30 * DAY
    ),
    "merge.queue_entries": Key(
        "integer",
        "so many changes wait in the queue at most; what is asked then is for the next rung",
        least=1,
        most=100_000,
    ),
    "merge.queue_bytes": Key(
        "size",
        "so much those that wait hold at most, all together; what is asked then is for the next rung",
        least=MIB,
        most=64 * GIB,
    ),
    "identity.author": Key("text", "who makes checkpoints, if neither a flag nor the caller says it"),
    "serve.listen": Key("text", "the address and port that the API listens at, if no option says otherwise"),
    "serve.threads": Key("integer", "so many requests are worked on at once", least=1, most=256),
    "serve.watchers": Key("integer", "so many exports are seen to at once", least=1, most=256),
    "serve.poll_interval": Key(
        "duration", "how often an export is looked at whose changes the system cannot tell", least=0.5, most=DAY
    ),
    "serve.max_body_bytes": Key("size", "a request with a larger body is refused", least=KIB, most=GIB),
    "serve.request_timeout": Key(
        "duration",
        "a request that comes more slowly, or is worked on for longer, is answered so",
        least=1,
        most=DAY,
    ),
    "serve.requests_per_minute": Key(
        "integer", "a token may ask so often, and an address without one that is right a tenth of that", least=10
    ),
    "serve.max_connections": Key("integer", "so many connections are held at once", least=1, most=65536),
    "serve.max_streams": Key("integer", "so many of them may be streams of events", least=0, most=65536),
    "serve.keep_answers": Key("age", "so long the answer to a request with an `Idempotency-Key` is kept", least=60),
    "serve.hosts": Key("texts", "names that requests may ask for, besides loopback's and the address listened at"),
    "serve.origins": Key("texts", "pages of these origins, such as `https://shop.example`, may ask"),
    "serve.end_timeout": Key(
        "duration", "how long requests that are worked on have to come to an end when the server is stopped", most=3600
    ),
    "serve.promotions": Key("integer", "so many promotions are made at once; others wait", least=1, most=64),
    "serve.session_commands": Key(
        "switch", "who has a token with all rights may run commands in sessions, as the server's user and not isolated"
    ),
}
