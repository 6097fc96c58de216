"""The records of mutations in the journal; docs/formats/undo-log.md specifies every field."""

from __future__ import annotations

import stat
from enum import IntEnum
from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from holdfast.files.linux.file_handle import Identity
from holdfast.files.linux.metadata import UNREAD, Metadata
from holdfast.model.decoders import msgpack_decoder
from holdfast.model.errors import FormatError

Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
"""A sequence number."""

StepId: TypeAlias = Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]
"""Positive for commands, calls and explicit steps; negative for ambient ones, numbered downwards."""

StepKind = Literal["command", "api", "ambient", "explicit"]

ObjectKey: TypeAlias = tuple[int, int]
"""Device, as in `Signature.device`, and inode number: used anew as soon as the object is gone."""

FileType = Literal["f", "d", "l", "p", "s", "c", "b"]

_TYPES: dict[int, FileType] = {
    stat.S_IFREG: "f",
    stat.S_IFDIR: "d",
    stat.S_IFLNK: "l",
    stat.S_IFIFO: "p",
    stat.S_IFSOCK: "s",
    stat.S_IFCHR: "c",
    stat.S_IFBLK: "b",
}


def file_type(mode: int) -> FileType:
    """The letter for the type in ``mode``."""
    return _TYPES[stat.S_IFMT(mode)]


class KeepMethod(IntEnum):
    """How a preimage is kept."""

    MOVED = 1
    """The object itself lies in the log, renamed there."""
    LINKED = 2
    """A name of the object is in the log."""
    COPIED = 3
    """Its content was copied, or shares its blocks."""
    NOT = 4
    """Not at all: the step itself had created it."""
    INLINE = 5
    """Its content is in the record."""
    RELATED = 6
    """It has another name in the tree, which the record contains: a reversal removed a link, to be made again."""


class Keeping(msgspec.Struct, array_like=True, frozen=True):
    """Where a preimage is."""

    how: KeepMethod
    number: Number = 0
    """The number of its preimage; 0 if it has none of its own."""
    content: bytes = b""
    """For `KeepMethod.INLINE`; for `KeepMethod.RELATED` the path."""
    shared: bool = False
    """The object has other names, and nothing in the log: it still exists under those names."""


NOT_KEPT = Keeping(KeepMethod.NOT)


class ObjectDescription(msgspec.Struct, array_like=True, frozen=True):
    """Owner and extended attributes of an object."""

    uid: int
    gid: int
    attributes: bytes
    """The hash of the extended attributes; empty if they could not be read."""


class Signature(msgspec.Struct, array_like=True, frozen=True):
    """The signature of the object at a path; see `holdfast.undo.tree.signatures`."""

    inode: int
    mode: int
    size: int
    mtime: int
    ctime: int
    names: int = 1
    """How many the object has."""
    parent: int = 0
    """The inode number of the directory."""
    check: bytes = b""
    """The hash of the content of a small file with several names; empty if it was not taken."""
    device: int = 0
    """The number of the file system's device; 0 for that of the workspace's root."""
    described: ObjectDescription | None = None
    """None where the ctime vouches for it, or an earlier version has written this."""

    @property
    def key(self) -> ObjectKey:
        """The key that distinguishes it from other objects of about the same time."""
        return self.device, self.inode


class Record(msgspec.Struct, array_like=True, frozen=True, tag_field="record", tag=0, gc=False):
    """Base of all records. They only hold values, so the garbage collector need not search them for cycles."""

    seq: Number


class Begin(Record, tag=1, frozen=True):
    """A step begins."""

    step: StepId
    kind: StepKind
    run: str
    command: tuple[bytes, ...]
    directory: bytes
    at: int
    parent: StepId | None = None


class End(Record, tag=2, frozen=True):
    """A step is complete."""

    step: StepId
    exit_code: int | None
    at: int


class Touch(Record, tag=3, frozen=True):
    """The names in a directory are going to change, and with them its mtime."""

    step: StepId
    path: bytes
    identity: Identity
    mtime: int


class Make(Record, tag=4, frozen=True):
    """An object is about to be created."""

    step: StepId
    path: bytes
    type: FileType
    at: int


class Made(Record, tag=5, frozen=True):
    """The object was created."""

    step: StepId
    make: int
    """The sequence number of the `Make`."""
    identity: Identity


class Remove(Record, tag=6, frozen=True):
    """A name is going to be removed."""

    step: StepId
    path: bytes
    type: FileType
    identity: Identity
    keeping: Keeping
    metadata: Metadata


class Replaced(msgspec.Struct, array_like=True, frozen=True):
    """The object that a rename replaced."""

    type: FileType
    identity: Identity
    keeping: Keeping
    metadata: Metadata


class Move(Record, tag=7, frozen=True):
    """An object is going to get another place."""

    step: StepId
    path: bytes
    target: bytes
    type: FileType
    identity: Identity
    replaced: Replaced | None = None
    exchanged: bool = False
    """The replaced object moves to the old path."""


class Content(Record, tag=8, frozen=True):
    """A file is going to be opened for writing."""

    step: StepId
    path: bytes
    identity: Identity
    keeping: Keeping
    metadata: Metadata


class Meta(Record, tag=9, frozen=True):
    """Metadata is going to change."""

    step: StepId
    path: bytes
    identity: Identity
    metadata: Metadata

    @property
    def is_whole(self) -> bool:
        """Whether it also says what extended attributes there were: else they had not been changed by then."""
        return self.metadata.xattrs != UNREAD


class PutBack(Record, tag=10, frozen=True):
    """A preimage that lies in the log is going to be renamed back into the tree."""

    step: StepId
    path: bytes
    type: FileType
    identity: Identity
    number: Number


class Failed(Record, tag=11, frozen=True):
    """The operation of an earlier record changed nothing."""

    step: StepId
    failed: int
    """Its sequence number."""


OURSELVES: Final = "holdfast"
"""`ForeignEdit.who` for a step that found an object which a checkpoint of Holdfast restored. (Others have a pid.)"""


class ForeignEdit(Record, tag=12, frozen=True):
    """Another process made a change: a barrier."""

    paths: tuple[bytes, ...]
    """The root's, which is empty, stands for any path."""
    at: int
    who: str
    blocks: bool = True
    """False if undo may cross it."""
    finder: StepId | None = None
    """The step that came upon it; None if it was seen, or told of."""
    objects: tuple[Identity, ...] = ()
    """Objects that were written to or whose metadata changed, by any name, as far as known."""


class ReversalBegin(Record, tag=13, frozen=True):
    """Steps are going to be reversed, or brought forward again, together."""

    steps: tuple[StepId, ...]
    forward: bool
    at: int
    spares: bool = False
    """Others' changes since stay: a recovery."""


class ReversalPosition(Record, tag=14, frozen=True):
    """The record at this position is going to be reversed, of all records of the steps by sequence number."""

    reverse: int
    """The sequence number of the `ReversalBegin`."""
    position: int
    """-1: all of them are reversed."""
    left: tuple[Signature, ...] = ()
    """The objects that the record before it was about, as its reversal left them."""


class Unprotected(Record, tag=15, frozen=True):
    """From here on the step is not protected."""

    step: StepId
    reason: str


class Link(Record, tag=16, frozen=True):
    """An object is going to get another name."""

    step: StepId
    path: bytes
    type: FileType
    identity: Identity
    source: bytes = b""
    """An existing name; empty if that is not in the tree, or not known."""


class ReversalConflict(Record, tag=17, frozen=True):
    """A record could not be reversed; its preimage was put into quarantine."""

    step: StepId
    failed: int
    """Its sequence number."""
    path: bytes
    reason: str
    aside: bool
    """True if what belongs there lies in ``aside``, under the number of the record."""


class Alias(Record, tag=18, frozen=True):
    """An object could only be brought back as another one."""

    step: StepId
    old: Identity
    new: Identity


class JournalRestart(Record, tag=19, frozen=True):
    """The first record of a segment that replaces all older ones, which are then removed one by one."""


AnyRecord: TypeAlias = (
    Begin
    | End
    | Touch
    | Make
    | Made
    | Remove
    | Move
    | Content
    | Meta
    | PutBack
    | Failed
    | ForeignEdit
    | ReversalBegin
    | ReversalPosition
    | Unprotected
    | Link
    | ReversalConflict
    | Alias
)
"""Every record that the journal tells anything by."""

Mutation: TypeAlias = Touch | Make | Made | Remove | Move | Content | Meta | PutBack | Link
"""The records of a step: those that can be reversed."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgpack_decoder(AnyRecord | JournalRestart)

encode = _encoder.encode


def decode(body: bytes | memoryview) -> AnyRecord | JournalRestart:
    """The record in ``body``; raises `FormatError` for anything else."""
    try:
        return _decoder.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise FormatError(f"a record of the undo log cannot be read: {error}") from error
