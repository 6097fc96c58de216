"""Answers of single commands, which nothing else gives."""

from __future__ import annotations

from holdfast.model.fast_typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from typing import Annotated, Literal, NotRequired

    from holdfast.model.answers.words import Path, SystemPath, Time


class Version(TypedDict):
    """Which version this is."""

    version: str


class Initialised(TypedDict):
    """A directory that is remembered."""

    workspace: str
    path: Path
    created: bool
    ignore_written: bool


class FileContent(TypedDict):
    """A file of a checkpoint."""

    path: SystemPath
    size: int
    base64: str


class Unmounted(TypedDict):
    """A fork by mount that is a plain directory now."""

    path: Path
    mounted: bool


class MountEvent(TypedDict):
    """That something is mounted, or no more; what does not apply is missing."""

    event: str
    checkpoint: NotRequired[str]
    directory: NotRequired[Path]
    pid: NotRequired[int]


class UnmountEvent(TypedDict):
    """That something was unmounted."""

    event: str
    directory: Path


class MountedCommand(TypedDict):
    """What became of a command that was run beside a mount."""

    checkpoint: str
    directory: Path
    exit_code: int


class Snapshot(TypedDict):
    """A snapshot by a provider."""

    id: str
    provider: str
    label: str
    created_at: Time
    parent: str | None
    """The one before it, which may have been discarded since."""
    views: list[Path]
    """Directories that show it."""


class TakenSnapshot(Snapshot):
    """One that was taken."""

    notes: list[str]
    """What its provider says of itself, such as what it leaves out."""
    passed_over: list[str]
    """The providers that could capture nothing at that moment, each with why."""


class Snapshots(TypedDict):
    """Those of a workspace, oldest first."""

    snapshots: list[Snapshot]


class SnapshotView(TypedDict):
    """A directory that shows a snapshot."""

    path: Path


class UnmountedSnapshot(TypedDict):
    """The directories that showed a snapshot."""

    unmounted: list[Path]


class DiscardedSnapshot(TypedDict):
    """The id of a snapshot that was removed."""

    discarded: str


class SnapshotCommand(TypedDict):
    """What became of a command that was run at the workspace's own path, apart from it."""

    exit_code: int
    snapshot: Snapshot | None
    """What it has made, where that was kept."""


class Image(TypedDict):
    """What a virtual machine begins as."""

    name: str
    id: str
    """The same for all images with the same files, made at the same time."""
    architecture: Annotated[str, "manifest.architecture"]
    source: Annotated[str, "manifest.source"]
    """Of what its root file system was made: a suite and a mirror, or ``archive``."""
    packages: Annotated[list[str], "manifest.packages"]
    """That were asked for, without what they depend on."""
    commands: Annotated[list[str], "manifest.commands"]
    """That were run in it."""
    python: Annotated[str, "manifest.python"]
    kernel_release: Annotated[str, "manifest.kernel_release"]
    kernel_package: Annotated[str, "manifest.kernel_package"]
    modules: Annotated[list[str], "manifest.modules"]
    """Those that are loaded at the start."""
    bytes: int
    """Of all its files; other images may share some."""
    created_at: Annotated[Time, "manifest.created_at"]


class Images(TypedDict):
    """Those of a home, by name."""

    images: list[Image]


class RemovedImage(TypedDict):
    """The name of an image that was removed."""

    removed: str


class WatchEvent(TypedDict):
    """That a watcher has begun."""

    event: str
    workspace: Path
    backend: str


class WatchEnd(TypedDict):
    """That it has ended."""

    event: str
    unsaved: str | None


class DetachedWatch(TypedDict):
    """A watcher that works in the background."""

    pid: int
    backend: str
    limits: str | None


class RunningMachine(TypedDict):
    """A virtual machine that runs."""

    run: str
    pid: int
    image: str
    accelerator: str
    filesystem: str
    persistent: bool
    started_at: float
    memory_bytes: int


class VmStatus(TypedDict):
    """What there is of a workspace's virtual machines."""

    running: list[RunningMachine]
    disk_bytes: int | None


class VmReset(TypedDict):
    """Whether there was a disk, which is removed."""

    reset: bool


class StoppedWatch(TypedDict):
    """What became of one that was to stop."""

    stopped: bool
    unsaved: str | None


class Completion(TypedDict):
    """A script for a shell."""

    shell: str
    script: str


class Listening(TypedDict):
    """Where clients can come."""

    listening: str
    promote_isolation: Literal["namespace", "none", "refused"]
    """Where promotions run their commands; ``refused``: they do not, as they cannot be isolated as asked for."""
    promote_isolation_reason: str
    """But for ``namespace``: why."""


class UiListening(TypedDict):
    """Where a browser can come."""

    address: str
    """It lets one browser in, once."""


class SocketListening(TypedDict):
    """Where clients can come, and where their token is."""

    listening: Path
    token_file: Path


class Token(TypedDict):
    """A token, without its secret."""

    id: str
    rights: str
    exports: list[str]
    roots: list[Path]
    label: str
    created_at: Time
    expires_at: Time | None


class _NewToken(TypedDict):
    tenant: str
    token: str


class NewToken(Token, _NewToken):
    """A token that was made."""


class Tokens(TypedDict):
    """The tokens of a tenant."""

    tenant: str
    tokens: list[Token]


class RevokedToken(TypedDict):
    """A token that is valid no more."""

    revoked: str


class ConfigFile(TypedDict):
    """A file of a client that is to change, or has changed."""

    path: Path
    change: str
    kept: Path | None


class Integrated(TypedDict):
    """What was written for a client."""

    client: str
    removed: bool
    written: bool
    files: list[ConfigFile]
