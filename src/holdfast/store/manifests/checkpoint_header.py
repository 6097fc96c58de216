"""The data of a checkpoint, kept beside its pages in case the catalog is lost.

Specified in docs/formats/manifest.md. Pure: values in, bytes out.
"""

from __future__ import annotations

from holdfast.model.errors import FormatError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING, cast
from holdfast.store.catalog_records import join_labels, split_labels
from holdfast.store.codecs.messagepack import Unpacker, array_head, binary, number

if TYPE_CHECKING:
    from holdfast.model.checkpoint import Checkpoint, Kind
    from holdfast.model.ids import CheckpointId, Hash, WorkspaceId
    from holdfast.store.catalog_records import MergeParent

MAGIC = b"HFH\x01"
_FIELDS = 14
_LATEST = 1 << 62
"""Later than any time that the catalog can hold beside others."""


class CheckpointHeader(NamedTuple):
    """A checkpoint as it was made."""

    id: CheckpointId
    workspace: WorkspaceId
    path: bytes
    """Of the workspace then; empty if it had none."""
    parent: CheckpointId | None
    root: Hash
    kind: Kind
    labels: tuple[str, ...]
    created_at: int
    author: str
    message: str
    command: str
    is_state: bool
    """Whether it was its workspace's state."""
    other: CheckpointId | None
    """The checkpoint of another line that it holds all of."""
    base: CheckpointId | None


def header_of(
    checkpoint: Checkpoint, path: bytes, *, is_state: bool, merged: MergeParent | None = None
) -> CheckpointHeader:
    """The header of ``checkpoint``, of the workspace at ``path``."""
    point = checkpoint
    other, base = (None, None) if merged is None else (merged.other, merged.base)
    said = point.provenance
    return CheckpointHeader(
        *(point.id, point.workspace, path, point.parent, point.root, point.kind, point.labels, point.created_at),
        *(said.author, said.message, said.command, is_state, other, base),
    )


def encode_header(header: CheckpointHeader) -> bytes:
    """``header`` as bytes."""
    one = header
    return b"".join(
        (
            MAGIC,
            array_head(_FIELDS),
            *map(binary, (one.id.encode(), one.workspace.encode(), one.path, (one.parent or "").encode(), one.root)),
            *map(binary, (one.kind.encode(), join_labels(one.labels).encode())),
            number(one.created_at),
            *map(binary, (one.author.encode(), one.message.encode(), one.command.encode())),
            number(int(one.is_state)),
            *map(binary, ((one.other or "").encode(), (one.base or "").encode())),
        )
    )


def decode_header(data: bytes) -> CheckpointHeader:
    """The inverse of `encode_header`; raises `FormatError`, with the field, for other bytes."""
    from holdfast.model.checkpoint import KINDS
    from holdfast.model.ids import HASH_BYTES, Hash

    if data[: len(MAGIC)] != MAGIC:
        raise FormatError("magic: this is no header of a checkpoint")
    source = Unpacker(data[len(MAGIC) :])
    source.array(_FIELDS)
    name, workspace, path = _id(source, "id", 24), _id(source, "workspace", 16), source.binary()
    parent = _id(source, "parent", 24, empty=True)
    root = source.binary()
    if len(root) != HASH_BYTES:
        raise FormatError(f"root: {len(root)} bytes are no hash")
    kind = _text(source, "kind")
    if kind not in KINDS:
        raise FormatError(f"kind: there is no {kind!r}")
    labels = split_labels(_text(source, "labels"))
    if "" in labels:
        raise FormatError("labels: one of them is empty")
    at = source.number()
    if at > _LATEST:
        raise FormatError("created_at: that is no time")
    author, message, command = (_text(source, field) for field in ("author", "message", "command"))
    is_state = source.number()
    if is_state > 1:
        raise FormatError(f"is_state: {is_state} is neither 0 nor 1")
    other, base = (_id(source, field, 24, empty=True) for field in ("other", "base"))
    source.end()
    if b"\0" in path or (path and not path.startswith(b"/")):
        raise FormatError("path: that is none of a workspace")
    return CheckpointHeader(
        cast("CheckpointId", name),
        cast("WorkspaceId", workspace),
        path,
        cast("CheckpointId", parent) or None,
        Hash(root),
        kind,
        labels,
        at,
        author,
        message,
        command,
        bool(is_state),
        cast("CheckpointId", other) or None,
        cast("CheckpointId", base) or None,
    )


def _text(source: Unpacker, field: str) -> str:
    try:
        return source.binary().decode()
    except UnicodeDecodeError:
        raise FormatError(f"{field}: it is no UTF-8") from None


def _id(source: Unpacker, field: str, digits: int, *, empty: bool = False) -> str:
    text = _text(source, field)
    if (text or not empty) and (len(text) != digits or text.strip("0123456789abcdef")):
        raise FormatError(f"{field}: {digits} hex digits are expected")
    return text
