"""The request for a promotion, and its known facts: values that the catalog keeps as JSON."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import msgspec

from holdfast.model.decoders import json_decoder
from holdfast.model.errors import FormatError, UsageError

if TYPE_CHECKING:
    from holdfast.model.config.settings import Promote

Stage = Literal["setup", "build", "check"]
STAGES: tuple[Stage, ...] = ("setup", "build", "check")


class DecidedFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A person's decision about a file that both sides have changed."""

    path: str
    """In production, as `display` writes it."""
    prefer: Literal["ours", "theirs"] | None = None
    """As production, or as the fork has it."""
    content: bytes | None = None
    """Without ``prefer``: its new content; null for no file. Base64 in JSON."""
    version: str | None = None
    """The shown versions of both sides. Null, before a promotion begins: those shown last."""


class PromotionSpec(msgspec.Struct, frozen=True):
    """The request. Frozen when a promotion begins: later changes of the settings do not affect it."""

    path: str
    """Of production, as `display` writes it."""
    setup: list[str]
    build: list[str]
    start: list[str]
    health: list[str]
    restart: list[str]
    timeout: float
    health_timeout: float
    health_interval: float
    memory: int
    max_output_bytes: int
    isolation: str
    network: str
    tries: int
    author: str
    message: str
    command: str
    hidden: list[str] = []
    visible: list[str] = []
    writable: list[str] = []
    environment: list[str] = []
    place: tuple[int, int] | None = None
    """Device and inode that production's directory has to have until the swap, if the caller has named it so."""
    provider: str = "auto"
    """The provider of the copy."""
    resolutions: list[DecidedFile] = []

    @property
    def runs_commands(self) -> bool:
        """Whether anything is set up, built, started or asked for its health."""
        return bool(self.setup or self.build or self.start or self.health)


class RestartResult(msgspec.Struct, frozen=True):
    """How the restart went."""

    exit_code: int
    output: str


class OverlappingFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file that both sides have changed."""

    path: str
    changeset_count: int
    detail: str
    why: str = ""
    version: str = ""
    """The version that a decision must be for."""
    production_diff: str | None = None
    """The changes of production, and of the fork, as hunks of unified diffs; null in a dry run, if they are too large,
    and where a former version has not kept them.
    """
    fork_diff: str | None = None
    foreseen: dict[str, Any] | None = None
    """In a dry run: what the ladder would do about it, as `holdfast.model.answers.merges.Foreseen`."""


class PlanCounts(msgspec.Struct, frozen=True):
    """The changes of a plan, in files."""

    apply_theirs: int = 0
    keep_production: int = 0
    deletes: int = 0
    unchanged: int = 0
    overlapping: int = 0
    identical: int = 0


class PromotionAnswer(msgspec.Struct):
    """How it ended. Fields that do not apply are empty, 0, or null."""

    result: str
    changesets: int = 0
    changes: PlanCounts | None = None
    overlapping_files: list[OverlappingFile] = []
    uncaptured: list[str] = []
    """Of a plan: as in `PromotionFacts`."""
    failed_step: str = ""
    """``setup_command``, ``build_command``, ``start_command`` or ``health_check``."""
    command: str = ""
    exit_code: int = 0
    output: str = ""
    recovery: str = ""
    checkpoint: str = ""
    """Production's present checkpoint."""
    previous: str = ""
    """Production's former checkpoint."""
    atomic: bool = True
    undo_command: str = ""
    code: str = ""
    message: str = ""
    ends_with: int = 1
    """Of ``failed``: the exit code of the error that it was."""


class DirectoryUser(msgspec.Struct, frozen=True):
    """A process that uses the old directory."""

    pid: int
    command: str


class PromotionFacts(msgspec.Struct):
    """The facts known by now. Paths are in the form of `display`."""

    attempt: int = 0
    replans: int = 0
    """How often production had changed meanwhile."""
    next: str = "plan"
    """The next step. Former versions did not record it."""
    failure: PromotionAnswer | None = None
    """The result before the swap, recorded before the build is removed."""
    base: str = ""
    """The checkpoint from which both sides' changes count."""
    ours: str = ""
    """The checkpoint of production that the plan is for."""
    merged: str = ""
    """The checkpoint of the merged state."""
    record: str = ""
    """How each file that both sides have changed came to be in it (docs/reference/merge.md)."""
    changesets: int = 0
    """How many steps of work the fork has done since."""
    changes: PlanCounts | None = None
    uncaptured: list[str] = []
    """Paths that the fork stopped capturing, and did not delete: they stay as in production."""
    plans: list[str] = []
    """All merged states that were put together, as production changed: they are forgotten in the end. Each is noted
    before it is made, so that none remains after a crash.
    """
    container: str = ""
    """The private directory in which it is built; noted before it is made."""
    provider: str = ""
    """The provider that made the copy."""
    provider_reason: str = ""
    """The reason for that provider, and remarks, for people."""
    isolation: Literal["", "namespace", "none"] = ""
    """The isolation of commands; empty if there are none, or none has run yet."""
    isolation_reason: str = ""
    """Of ``none``: why."""
    exchange: bool = True
    """Whether production and the build will be swapped."""
    hindrance: str = ""
    """If not: why."""
    built: tuple[int, int, int | None] | None = None
    """Device, inode and birth time of the build's root."""
    old: tuple[int, int, int | None] | None = None
    """Of production's root before."""
    seen: int = 0
    """The newest event of production's history when it was swapped."""
    target: str = ""
    """Without an exchange: the checkpoint of the build."""
    late: list[str] = []
    """Files that were written to the old directory after the swap."""
    used_by: list[DirectoryUser] = []
    """Processes that are in the old directory after the swap, or have a file in it open."""
    kept: str = ""
    """The place where the old directory is kept, because it is in use or has changed."""
    restart: RestartResult | None = None
    answer: PromotionAnswer | None = None


def encode_json(value: msgspec.Struct) -> str:
    """As the catalog keeps it."""
    return msgspec.json.encode(value).decode()


def decode_spec(text: str) -> PromotionSpec:
    """Raises `FormatError`."""
    try:
        return json_decoder(PromotionSpec).decode(text.encode())
    except msgspec.MsgspecError as error:
        raise FormatError(f"the request of a promotion cannot be read: {error}") from error


def decode_resolutions(data: bytes) -> list[DecidedFile]:
    """The decisions of a program, from a JSON list. Raises `UsageError`."""
    try:
        return json_decoder(list[DecidedFile]).decode(data)
    except msgspec.MsgspecError as error:
        raise UsageError(f"the decisions of a promotion cannot be read: {error}") from error


def decode_facts(text: str) -> PromotionFacts:
    """Raises `FormatError`."""
    try:
        return json_decoder(PromotionFacts).decode(text.encode())
    except msgspec.MsgspecError as error:
        raise FormatError(f"the progress of a promotion cannot be read: {error}") from error


def check_settings(settings: Promote) -> None:
    """Raise `UsageError` for settings that contradict themselves."""
    if settings.health and not settings.start and is_url(settings.health):
        raise UsageError(
            "promote.health asks a URL, but promote.start starts no server",
            hint="set promote.start, or let promote.health be a command",
        )
    if is_url(settings.health):
        _check_url(settings.health[0])


def is_url(health: tuple[str, ...] | list[str]) -> bool:
    """Whether a health check is a URL."""
    return len(health) == 1 and health[0].startswith(("http://", "https://"))


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url.replace("{port}", "1"))
        host, _ = parts.hostname or "", parts.port
    except ValueError as error:
        raise UsageError(f"promote.health: {url!r} is no URL: {error}") from None
    if host == "localhost":
        return
    try:
        if ipaddress.ip_address(host).is_loopback:
            return
    except ValueError:
        pass
    raise UsageError(
        f"promote.health: {url!r} is not on this machine",
        hint="the URL must be on 127.0.0.1, [::1] or localhost; a command can ask any host",
    )
