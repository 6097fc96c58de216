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
    """A mounted fork, now a plain directory."""

    path: Path
    mounted: bool


class MountEvent(TypedDict):
    """An event of a mount."""

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
    """A command on a mount."""

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
    """Possibly discarded since."""
    views: list[Path]
    """Directories that show it."""


class TakenSnapshot(Snapshot):
    """A snapshot that was taken."""

    notes: list[str]
    """The provider's remarks."""
    passed_over: list[str]
    """Providers that could not capture, with reasons."""


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
    """The same for the same files and time."""
    architecture: Annotated[str, "manifest.architecture"]
    """By Debian's name, such as ``amd64``."""
    source: Annotated[str, "manifest.source"]
    """A suite and a mirror, or ``archive``."""
    packages: Annotated[list[str], "manifest.packages"]
    commands: Annotated[list[str], "manifest.commands"]
    """Run in it."""
    python: Annotated[str, "manifest.python"]
    """Its path."""
    kernel_release: Annotated[str, "manifest.kernel_release"]
    kernel_package: Annotated[str, "manifest.kernel_package"]
    """``NAME=VERSION``."""
    modules: Annotated[list[str], "manifest.modules"]
    """Loaded at the start."""
    bytes: int
    """Of all its files; images may share some."""
    created_at: Annotated[Time, "manifest.created_at"]


class Images(TypedDict):
    """Images by name; a damaged one is named by a warning instead."""

    images: list[Image]


class RemovedImage(TypedDict):
    """The name of the image."""

    removed: str


class WatchEvent(TypedDict):
    """An event of the watcher."""

    event: str
    """``watching``."""
    workspace: Path
    backend: str


class WatchEnd(TypedDict):
    """The end of the watcher."""

    event: str
    """``stopped``."""
    unsaved: str | None
    """Why changes are unsaved."""


class DetachedWatch(TypedDict):
    """With ``--detach``."""

    pid: int
    backend: str
    limits: str | None
    """A sentence about changes that it cannot see."""


class RunningMachine(TypedDict):
    """A running machine."""

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
    """Seconds since 1970."""
    memory_bytes: int
    """Of this host."""


class VmStatus(TypedDict):
    """The status."""

    running: list[RunningMachine]
    disk_bytes: int | None
    """Of the kept disk."""


class VmReset(TypedDict):
    """The result."""

    reset: bool


class StoppedWatch(TypedDict):
    """With ``--stop``."""

    stopped: bool
    """False if none ran."""
    unsaved: str | None
    """Why changes are unsaved."""


class Completion(TypedDict):
    """A script."""

    shell: str
    script: str


class Listening(TypedDict):
    """The listening server."""

    listening: str
    promote_isolation: Literal["namespace", "none", "refused"]
    """Of promotions' commands; ``refused``: the configured one does not work here, so none run."""
    promote_isolation_reason: str


class UiListening(TypedDict):
    """The server listens; no browser is opened."""

    address: str
    """With the one-time token for a browser."""


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
    """The tokens."""

    tenant: str
    tokens: list[Token]


class RevokedToken(TypedDict):
    """The id of a revoked token."""

    revoked: str


class ConfigFile(TypedDict):
    """A configuration file."""

    path: Path
    change: str
    """``new``, ``changed`` or ``deleted``."""
    kept: Path | None
    """The former file's copy in the home."""


class Integrated(TypedDict):
    """An integration."""

    client: str
    removed: bool
    """With ``--remove``."""
    written: bool
    """False with ``--dry-run``, or without changes."""
    files: list[ConfigFile]
