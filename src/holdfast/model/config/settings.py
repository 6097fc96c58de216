"""Every setting of Holdfast, with its type and its default.

`keys` explains them. `values.parse_value` reads one value, `layers.resolve` all.
"""

from __future__ import annotations

from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from typing import Any

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
HOUR, DAY = 3600.0, 86400.0

SafeguardPreset = Literal["off", "guard"]
OutsidePolicy = Literal["barrier", "warn", "lock"]
IsolationLevel = Literal["none", "namespace", "vm"]
VmMode = Literal["persistent", "ephemeral"]
VmFileSystem = Literal["auto", "virtiofs", "9p"]
NetworkMode = Literal["open", "disabled", "allow"]
Tmp = Literal["own", "shared"]
YesNo = Literal["no", "yes"]
SnapshotProvider = Literal["auto", "btrfs", "zfs", "overlay", "reflink", "git", "holdfast", "copy"]
Backend = Literal["auto", "fanotify", "inotify", "polling"]
SessionShell = Literal["bash", "sh", "zsh"]
PromoteIsolation = Literal["auto", "namespace", "none"]
PromoteNetwork = Literal["open", "disabled"]
PromoteProvider = Literal["auto", "btrfs", "reflink", "copy"]


class Capture(NamedTuple):
    """Which files of a workspace are captured."""

    max_file_bytes: int = GIB
    exclude: tuple[str, ...] = ()
    credentials: bool = False
    warn_files: int = 50_000
    warn_bytes: int = 2 * GIB


class Store(NamedTuple):
    """Where content is kept, and how much of it."""

    url: str = ""
    max_bytes: int = 20 * GIB
    pack_bytes: int = 32 * MIB
    tenant: str = "local"
    catalog: str = ""
    connections: int = 8
    options: tuple[str, ...] = ()
    timeout: float = 30.0
    retries: int = 6
    parallel: int = 4
    cache_bytes: int = GIB
    encryption_key: str = ""
    old_keys: tuple[str, ...] = ()


class Lock(NamedTuple):
    """Waiting for other processes."""

    timeout: float = 30.0


class Watch(NamedTuple):
    """Saving by itself."""

    debounce: float = 5.0
    max_interval: float = 300.0
    max_per_hour: int = 60
    backend: Backend = "auto"
    poll_interval: float = 2.0
    answer_timeout: float = 3.0
    full_walk_interval: float = HOUR


class Retention(NamedTuple):
    """How checkpoints that were not asked for by name thin out as they age."""

    keep_all: float = HOUR
    per_ten_minutes: float = DAY
    hourly: float = 7 * DAY
    daily: float = 0.0
    rescue: float = DAY
    interval: float = HOUR


class Gc(NamedTuple):
    """Collection of what nothing uses."""

    grace: float = DAY
    rewrite_ratio: float = 0.5


class Files(NamedTuple):
    """The files that restores and forks write."""

    uid: int = -1
    gid: int = -1


class Undo(NamedTuple):
    """How much the undo log of a workspace holds."""

    max_log_bytes: int = GIB
    max_steps: int = 1_000
    max_step_bytes: int = 200 * MIB
    stop_timeout: float = 5.0
    outside: OutsidePolicy = "barrier"


class Safeguard(NamedTuple):
    """Limits at which `run` asks a person."""

    preset: SafeguardPreset = "off"
    deletes: int = -1
    overwrite_bytes: int = -1
    rename_over: int = -1
    timeout: float = 30.0
    notify: tuple[str, ...] = ()


class Isolation(NamedTuple):
    """The isolation of a command (docs/reference/isolation.md)."""

    level: IsolationLevel = "none"
    network: NetworkMode = "open"
    allow: tuple[str, ...] = ()
    dns: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    visible: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    tmp: Tmp = "own"
    environment: tuple[str, ...] = ()
    memory: int = 0
    processes: int = 0
    disk: int = 0


class Vm(NamedTuple):
    """The virtual machine that a command runs in (docs/reference/vm.md)."""

    image: str = "default"
    mode: VmMode = "persistent"
    memory: int = GIB
    cpus: int = 1
    disk: int = 8 * GIB
    environment: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    filesystem: VmFileSystem = "auto"
    start_timeout: float = 300.0


class Snapshot(NamedTuple):
    """How writable copies of a workspace are made (docs/reference/snapshot.md)."""

    provider: SnapshotProvider = "auto"
    directory: str = ""
    max_copy_bytes: int = 10 * GIB


class Git(NamedTuple):
    """Contents and commands of snapshots by Git."""

    include_untracked: YesNo = "no"
    include_conflicts: YesNo = "no"
    trust_local_filters: YesNo = "no"


class Session(NamedTuple):
    """Shells that remember (docs/reference/session.md)."""

    shell: SessionShell = "bash"
    timeout: float = 0.0
    max_output_bytes: int = 64 * KIB
    supervised: bool = True
    commands: int = 10
    idle: float = 30.0
    min_interval: float = 5.0
    max_journal: int = 1000
    max_journal_bytes: int = 8 * MIB
    max_checkpoints: int = 100
    max_history_bytes: int = 256 * MIB
    max_forks: int = 16
    max_parallel: int = 4
    fork_ttl: float = 7 * DAY
    hot: float = HOUR
    warm: float = DAY
    cold_url: str = ""


class Promote(NamedTuple):
    """Bringing a fork to production (docs/reference/promote.md)."""

    setup: tuple[str, ...] = ()
    build: tuple[str, ...] = ()
    start: tuple[str, ...] = ()
    health: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()
    timeout: float = 900.0
    health_timeout: float = 60.0
    health_interval: float = 0.5
    memory: int = 4 * GIB
    max_output_bytes: int = MIB
    isolation: PromoteIsolation = "auto"
    network: PromoteNetwork = "open"
    show: tuple[str, ...] = ()
    provider: PromoteProvider = "auto"
    tries: int = 3
    wait: float = 600.0


class Hooks(NamedTuple):
    """Commands that run at events of a session (docs/reference/experiment.md)."""

    before_checkpoint: tuple[str, ...] = ()
    after_checkpoint: tuple[str, ...] = ()
    before_fork: tuple[str, ...] = ()
    after_fork: tuple[str, ...] = ()
    before_branch: tuple[str, ...] = ()
    after_branch: tuple[str, ...] = ()
    timeout: float = 30.0

    @property
    def configured(self) -> bool:
        """Whether there is any."""
        return any(isinstance(value, tuple) and value for value in self)


class Safety(NamedTuple):
    """The levels of programs for the classifier (docs/reference/classify.md)."""

    programs: tuple[str, ...] = ()


class Agent(NamedTuple):
    """The coding agent behind a frontend."""

    command: tuple[str, ...] = ()


class Merge(NamedTuple):
    """How changes that both sides have made to a file are applied anew (docs/reference/ladder.md)."""

    ladder: tuple[str, ...] = ("command", "structure", "text", "person")
    command: tuple[str, ...] = ()
    timeout: float = 120.0
    total_timeout: float = 1800.0
    calls: int = 4
    max_bytes: int = MIB
    lease: float = 600.0
    deadline: float = DAY
    queue_entries: int = 1000
    queue_bytes: int = 256 * MIB


class Serve(NamedTuple):
    """The REST API, and the upkeep of its exports (docs/reference/rest.md)."""

    listen: str = "127.0.0.1:7420"
    threads: int = 8
    watchers: int = 4
    poll_interval: float = 30.0
    max_body_bytes: int = 16 * MIB
    request_timeout: float = 120.0
    requests_per_minute: int = 6000
    max_connections: int = 256
    max_streams: int = 64
    keep_answers: float = DAY
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    end_timeout: float = 60.0
    promotions: int = 2
    session_commands: bool = False


class Identity(NamedTuple):
    """Who makes checkpoints."""

    author: str = ""


class Settings(NamedTuple):
    """All settings, by section."""

    capture: Capture = Capture()
    store: Store = Store()
    lock: Lock = Lock()
    watch: Watch = Watch()
    retention: Retention = Retention()
    gc: Gc = Gc()
    files: Files = Files()
    undo: Undo = Undo()
    safeguard: Safeguard = Safeguard()
    isolation: Isolation = Isolation()
    vm: Vm = Vm()
    snapshot: Snapshot = Snapshot()
    git: Git = Git()
    session: Session = Session()
    promote: Promote = Promote()
    hooks: Hooks = Hooks()
    safety: Safety = Safety()
    agent: Agent = Agent()
    merge: Merge = Merge()
    identity: Identity = Identity()
    serve: Serve = Serve()


def default(name: str) -> Any:
    """The default of the key ``section.key``."""
    section, _, key = name.partition(".")
    return getattr(getattr(Settings(), section), key)
