"""Answers of single commands, which nothing else gives."""

from __future__ import annotations

from holdfast.model.fast_typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from typing import Annotated, Literal, NotRequired

    from holdfast.model.answers.words import Path, SystemPath, Time


class Version(TypedDict):
    """The version."""

    version: str


class Initialised(TypedDict):
    """A remembered directory."""

    workspace: str
    """Its id."""
    path: Path
    created: bool
    """False if it was remembered already."""
    ignore_written: bool
    """``--write-ignore`` wrote a file."""


class FileContent(TypedDict):
    """A file of a checkpoint."""

    path: SystemPath
    size: int
    base64: str


class Unmounted(TypedDict):
    """A fork by mount that is now a plain directory."""

    path: Path
    mounted: bool


class MountEvent(TypedDict):
    """A mount that began or ended."""

    event: str
    """``mounted`` or ``unmounted``."""
    checkpoint: NotRequired[str]
    directory: NotRequired[Path]
    pid: NotRequired[int]
    """With ``--detach``: the process that serves it."""


class UnmountEvent(TypedDict):
    """The end of a mount."""

    event: str
    """``unmounted``."""
    directory: Path


class MountedCommand(TypedDict):
    """A command that uses a mount."""

    checkpoint: str
    directory: Path
    exit_code: int


class Snapshot(TypedDict):
    """A snapshot."""

    id: str
    provider: str
    label: str
    created_at: Time
    parent: str | None
    """The parent may have been discarded since."""
    views: list[Path]
    """Directories that show it."""


class TakenSnapshot(Snapshot):
    """A new snapshot."""

    notes: list[str]
    """The provider's remarks, such as files that it leaves out."""
    passed_over: list[str]
    """Providers that could capture nothing then, with reasons."""


class Snapshots(TypedDict):
    """Snapshots, oldest first."""

    snapshots: list[Snapshot]


class SnapshotView(TypedDict):
    """The directory that shows it."""

    path: Path


class UnmountedSnapshot(TypedDict):
    """The directories."""

    unmounted: list[Path]


class DiscardedSnapshot(TypedDict):
    """The id of the snapshot."""

    discarded: str


class SnapshotCommand(TypedDict):
    """A command in an overlay."""

    exit_code: int
    snapshot: Snapshot | None
    """With ``-m``."""


class Image(TypedDict):
    """An image."""

    name: str
    id: str
    """The same for images of the same files and time."""
    architecture: Annotated[str, "manifest.architecture"]
    """Debian's name for it, such as ``amd64``."""
    source: Annotated[str, "manifest.source"]
    """A suite and a mirror, or ``archive``."""
    packages: Annotated[list[str], "manifest.packages"]
    commands: Annotated[list[str], "manifest.commands"]
    """Run in it."""
    python: Annotated[str, "manifest.python"]
    """The path of Python in it."""
    kernel_release: Annotated[str, "manifest.kernel_release"]
    kernel_package: Annotated[str, "manifest.kernel_package"]
    """``NAME=VERSION``."""
    modules: Annotated[list[str], "manifest.modules"]
    """Loaded at the start."""
    bytes: int
    """Of all its files; other images may share some."""
    created_at: Annotated[Time, "manifest.created_at"]


class Images(TypedDict):
    """Images by name; a damaged one is named by a warning instead."""

    images: list[Image]


class RemovedImage(TypedDict):
    """The name of the image."""

    removed: str


class WatchEvent(TypedDict):
    """The watcher began."""

    event: str
    """``watching``."""
    workspace: Path
    backend: str


class WatchEnd(TypedDict):
    """The watcher ended."""

    event: str
    """``stopped``."""
    unsaved: str | None
    """Why the last changes are not saved."""


class DetachedWatch(TypedDict):
    """With ``--detach``."""

    pid: int
    backend: str
    limits: str | None
    """A sentence about changes that it cannot see."""


class RunningMachine(TypedDict):
    """A running virtual machine."""

    run: str
    pid: int
    """Of its monitor."""
    image: str
    accelerator: str
    filesystem: str
    """``virtiofs`` or ``9p``."""
    persistent: bool
    """Its disk stays."""
    started_at: float
    """Seconds since the epoch."""
    memory_bytes: int
    """Memory of this host that it has."""


class VmStatus(TypedDict):
    """The machines of a workspace."""

    running: list[RunningMachine]
    disk_bytes: int | None
    """The size of the kept disk; null without one."""


class VmReset(TypedDict):
    """The result."""

    reset: bool


class StoppedWatch(TypedDict):
    """With ``--stop``."""

    stopped: bool
    """False if none was running."""
    unsaved: str | None
    """Why the last changes are not saved."""


class Completion(TypedDict):
    """A script."""

    shell: str
    script: str


class Listening(TypedDict):
    """The server listens."""

    listening: str
    promote_isolation: Literal["namespace", "none", "refused"]
    """The isolation of promotions' commands; ``refused``: the configured one does not work here, so none run."""
    promote_isolation_reason: str
    """Empty for ``namespace``."""


class UiListening(TypedDict):
    """The server listens; no browser is opened."""

    address: str
    """The address with the one-time token for a browser."""


class SocketListening(TypedDict):
    """With ``--socket``, on standard error."""

    listening: Path
    token_file: Path


class Token(TypedDict):
    """A token without its secret."""

    id: str
    rights: str
    """``read``, ``write`` or ``admin``."""
    exports: list[str]
    roots: list[Path]
    label: str
    created_at: Time
    expires_at: Time | None
    """Null: never."""


class _NewToken(TypedDict):
    tenant: str
    token: str


class NewToken(Token, _NewToken):
    """A new token."""


class Tokens(TypedDict):
    """The tokens of a tenant."""

    tenant: str
    tokens: list[Token]


class RevokedToken(TypedDict):
    """The id of a revoked token."""

    revoked: str


class ConfigFile(TypedDict):
    """A file of the client."""

    path: Path
    change: str
    """``new``, ``changed`` or ``deleted``."""
    kept: Path | None
    """The copy of the former file in the home."""


class Integrated(TypedDict):
    """The changes of a client's files."""

    client: str
    removed: bool
    """With ``--remove``."""
    written: bool
    """False with ``--dry-run``, and if there was nothing to do."""
    files: list[ConfigFile]
