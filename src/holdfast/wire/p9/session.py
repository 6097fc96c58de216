"""One client's connection: the agreed version, its requests in flight, and its fids.

Pure: it takes messages and answers, and returns actions for the server. ``Kept`` is the server's object for a fid::

    splitter, session = FrameSplitter(), Session(Limits())
    for frame in splitter.split(data):              # FormatError: close the connection, then `close`
        actions = session.receive(frame)            # FormatError: the same
        splitter.limit = session.msize
        ...                                         # carry `actions` out
    ...
    actions = session.finish(request, reply, kept)  # when a request has been carried out, in any order

Many threads may perform requests at the same time, and answer them in any order. The session itself is not thread-safe:
take one lock for each call *and* the sending of its `Actions.output`. Without that, an Rflush could overtake the reply
to the request that it flushes, and the client would believe that the request never happened.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from holdfast.model.errors import FormatError, HoldfastError, RefusedError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.wire.p9 import protocol_constants, replies, request_bodies
from holdfast.wire.p9.framing import decode_header
from holdfast.wire.p9.protocol_constants import (
    FIRST_FRAME_BYTES,
    IO_HEADER_BYTES,
    NO_TAG,
    SMALLEST_MSIZE,
    UNKNOWN_VERSION,
    VERSION,
    Type,
)
from holdfast.wire.p9.request_errors import (
    BAD_FID,
    BAD_TAG,
    FID_BUSY,
    NO_VERSION,
    SMALL_MSIZE,
    TOO_MANY,
    errno_of,
)
from holdfast.wire.p9.requests import Decoder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.wire.p9.framing import Header
    from holdfast.wire.p9.request_bodies import Body

Kept = TypeVar("Kept")
Buffer = bytes | bytearray | memoryview


class Limits(NamedTuple):
    """How much a client may use."""

    msize: int = protocol_constants.LARGEST_MSIZE
    """The longest message, in bytes; `SMALLEST_MSIZE` or more."""
    fids: int = 1 << 16
    requests: int = 256
    """In flight, those of an earlier version included. More are refused; a server stops reading before (`full`)."""


class FidState(Enum):
    """The kinds of objects that a fid refers to."""

    PATH = "path"
    """A file or directory, not open."""
    OPEN = "open"
    """The same, open."""
    ATTRIBUTE = "attribute"
    """An extended attribute, or the list of names, to be read."""
    NEW_ATTRIBUTE = "new_attribute"
    """An extended attribute to be written, and set when the fid is clunked."""
    AUTH = "auth"
    """A conversation about who the user is."""


class FidEntry(Generic[Kept]):
    """A fid that a request is about. `kept` is good until the request is finished, also if the fid is clunked."""

    __slots__ = ("changing", "kept", "known", "state", "users")

    kept: Kept
    state: FidState

    def __init__(self, kept: Kept, state: FidState) -> None:
        self.kept = kept
        self.state = state
        self.users = 0
        self.changing = False
        self.known = True


class Request(Generic[Kept]):
    """A request in flight. Only `interrupted` changes, which any thread may read."""

    __slots__ = ("body", "fid", "interrupted", "second", "tag", "type")

    def __init__(self, header: Header, body: Body, fid: FidEntry[Kept] | None, second: FidEntry[Kept] | None) -> None:
        self.type = header.type
        """A `Type`, never VERSION or FLUSH: those are the session's."""
        self.tag = header.tag
        self.body = body
        self.fid = fid
        """Of the body's first number; None for AUTH and ATTACH, where that is a new one."""
        self.second = second
        """Of the body's other fid: `Attach.auth_fid`, `Link.target_fid`, `Rename.directory_fid`, `RenameAt.new_fid`."""
        self.interrupted = False
        """The client does not wait any more. The server may stop; it answers if anything has been done."""


class _Flight:
    """The session's record of an unfinished request."""

    __slots__ = ("changes", "current", "flushes", "new_fid")

    def __init__(self, new_fid: int | None, *, changes: bool) -> None:
        self.new_fid = new_fid
        """The number of the fid that the request makes, if any."""
        self.changes = changes
        """Whether it changes the object of the request's fid; no other request may use the fid meanwhile."""
        self.flushes: list[int] = []
        self.current = True
        """Not of an earlier version: it is answered."""


class Actions(NamedTuple, Generic[Kept]):
    """Actions for the server, in this order."""

    output: Sequence[Buffer] = ()
    """To be sent, one after the other, before that of any later call."""
    request: Request[Kept] | None = None
    """To be carried out, and then given to `Session.finish`, or `Session.abandon`."""
    interrupted: Sequence[Request[Kept]] = ()
    """The client no longer waits for these. They must be finished like all others."""
    gone: Sequence[Kept] = ()
    """The objects of fids that no longer exist, and that no request uses: to be closed. Each is here once."""


_PATHS: Final = frozenset({FidState.PATH, FidState.OPEN})
_UNOPENED: Final = frozenset({FidState.PATH})
_OPENED: Final = frozenset({FidState.OPEN})
_READABLE: Final = frozenset({FidState.OPEN, FidState.ATTRIBUTE, FidState.AUTH})
_WRITABLE: Final = frozenset({FidState.OPEN, FidState.NEW_ATTRIBUTE, FidState.AUTH})
_AUTH: Final = frozenset({FidState.AUTH})
_ANY: Final = frozenset(FidState)

_ALLOWED: Final[dict[int, frozenset[FidState]]] = {
    Type.STATFS: _PATHS,
    Type.LOPEN: _UNOPENED,
    Type.LCREATE: _UNOPENED,
    Type.SYMLINK: _PATHS,
    Type.MKNOD: _PATHS,
    Type.RENAME: _PATHS,
    Type.READLINK: _PATHS,
    Type.GETATTR: _PATHS,
    Type.SETATTR: _PATHS,
    Type.XATTRWALK: _PATHS,
    Type.XATTRCREATE: _UNOPENED,
    Type.READDIR: _OPENED,
    Type.FSYNC: _OPENED,
    Type.LOCK: _OPENED,
    Type.GETLOCK: _OPENED,
    Type.LINK: _PATHS,
    Type.MKDIR: _PATHS,
    Type.RENAMEAT: _PATHS,
    Type.UNLINKAT: _PATHS,
    Type.WALK: _PATHS,
    Type.READ: _READABLE,
    Type.WRITE: _WRITABLE,
    Type.CLUNK: _ANY,
    Type.REMOVE: _ANY,
}
"""The permitted kinds of object for the first fid of a request."""

_BECOMES: Final[dict[int, FidState]] = {
    Type.LOPEN: FidState.OPEN,
    Type.LCREATE: FidState.OPEN,
    Type.XATTRCREATE: FidState.NEW_ATTRIBUTE,
    Type.WALK: FidState.PATH,
    Type.ATTACH: FidState.PATH,
    Type.AUTH: FidState.AUTH,
    Type.XATTRWALK: FidState.ATTRIBUTE,
}
"""The kind of object of a fid after a request that makes or changes one."""
_ENDING: Final = frozenset({Type.CLUNK, Type.REMOVE})


class Session(Generic[Kept]):
    """See the module. A client's request is either refused, or may be performed with its fids."""

    __slots__ = ("_decoder", "_fids", "_limits", "_requests", "_reserved", "_tags", "_version_reply", "msize")

    def __init__(self, limits: Limits) -> None:
        if limits.msize < SMALLEST_MSIZE:
            raise ValueError(f"msize: {limits.msize} is less than {SMALLEST_MSIZE}")
        self.msize = FIRST_FRAME_BYTES
        """The longest message from now on, in either direction."""
        self._limits = limits
        self._decoder: Decoder | None = None
        self._requests: dict[Request[Kept], _Flight] = {}
        # The tag of a waiting flush is here too, with the request for which it waits.
        self._tags: dict[int, Request[Kept]] = {}
        self._fids: dict[int, FidEntry[Kept]] = {}
        # Numbers of the fids that requests in flight will make.
        self._reserved: set[int] = set()
        # Kept back until the requests of an earlier version are finished.
        self._version_reply: bytes | None = None

    @property
    def most_data(self) -> int:
        """The most data in one READ or WRITE: what to say as ``io_unit``."""
        return self.msize - IO_HEADER_BYTES

    @property
    def fid_count(self) -> int:
        """Number of fids, including those to be made."""
        return len(self._fids) + len(self._reserved)

    @property
    def in_flight(self) -> int:
        """How many requests are not finished."""
        return len(self._requests)

    @property
    def full(self) -> bool:
        """No more should be read until a request is finished."""
        return len(self._requests) >= self._limits.requests

    def receive(self, frame: memoryview) -> Actions[Kept]:
        """The actions for one message of the client; a refused one is answered with an error.

        Raises `FormatError` if the connection is useless: a message with another length than it says, or a tag that is
        in flight already, so that the two replies could not be distinguished.
        """
        header = decode_header(frame)
        if header.tag in self._tags:
            raise FormatError(f"tag: {header.tag} is in flight already", code=BAD_TAG)
        try:
            return self._receive(header, frame)
        except HoldfastError as error:
            return Actions((replies.error(header.tag, errno_of(error)),))

    def _receive(self, header: Header, frame: memoryview) -> Actions[Kept]:
        if (header.tag == NO_TAG) != (header.type == Type.VERSION):
            raise FormatError(f"tag: {header.tag} in a message of type {header.type}", code=BAD_TAG)
        if header.type == Type.VERSION:
            return self._negotiate(Decoder(self.msize).decode(header, frame))
        if self._decoder is None or self._version_reply is not None:
            raise FormatError("a request before there is a version", code=NO_VERSION)
        body = self._decoder.decode(header, frame)
        if isinstance(body, request_bodies.Flush):
            return self._flush(header.tag, body.tag)
        return Actions(request=self._begin(header, body))

    def _negotiate(self, offer: Body) -> Actions[Kept]:
        """Begin a new session: the previous one is over."""
        assert isinstance(offer, request_bodies.Version)
        if offer.msize < SMALLEST_MSIZE:
            raise FormatError(f"msize: {offer.msize} is less than {SMALLEST_MSIZE}", code=SMALL_MSIZE)
        actions = self.close()
        msize = min(offer.msize, self._limits.msize)
        if offer.version == VERSION:
            self.msize = msize
            self._decoder = Decoder(msize)
            reply = replies.version(NO_TAG, msize, VERSION)
        else:
            reply = replies.version(NO_TAG, msize, UNKNOWN_VERSION)
        if self._requests:
            # No action of an earlier session may happen once the client believes in the new one.
            self._version_reply = reply
            return actions
        return actions._replace(output=(reply,))

    def close(self) -> Actions[Kept]:
        """The connection has ended, or a new session begins: no fid is known any more, the client waits for no request,
        and nothing is sent. The server must still finish the requests in flight: the `finish` of the last one that uses
        a fid returns its object.
        """
        interrupted = [request for request, flight in self._requests.items() if flight.current]
        for request in interrupted:
            request.interrupted = True
            self._requests[request].current = False
        self._version_reply = None
        self._decoder = None
        self.msize = FIRST_FRAME_BYTES
        self._tags.clear()
        self._reserved.clear()
        gone: list[Kept] = []
        for entry in self._fids.values():
            entry.known = False
            if not entry.users:
                gone.append(entry.kept)
        self._fids.clear()
        return Actions(interrupted=interrupted, gone=gone)

    def _flush(self, tag: int, flushed: int) -> Actions[Kept]:
        """Answered after the request that it flushes, or at once if that was answered or never came."""
        request = self._tags.get(flushed)
        if request is None:
            return Actions((replies.done(tag, Type.FLUSH),))
        # (A flush of a flush is answered after that one, and so after the request of both.)
        self._tags[tag] = request
        self._requests[request].flushes.append(tag)
        if request.interrupted:
            return Actions()
        request.interrupted = True
        return Actions(interrupted=(request,))

    def _begin(self, header: Header, body: Body) -> Request[Kept]:
        """Looks up the fids of a request, and holds on to them. Raises `FormatError` or `RefusedError`, and has done
        nothing then.
        """
        if self.full:
            raise RefusedError(f"{len(self._requests)} requests are in flight, the most that may be", code=TOO_MANY)
        number = body[0]
        changes, new_fid, second = False, None, None
        match body:
            case request_bodies.Auth():
                new_fid = number
            case request_bodies.Attach():
                new_fid = number
                second = None if body.auth_fid is None else self._look_up(body.auth_fid, _AUTH)
            case request_bodies.Walk() if body.new_fid == number:
                changes = bool(body.names)
            case request_bodies.Walk() | request_bodies.XattrWalk():
                new_fid = body.new_fid
            case request_bodies.Link():
                second = self._look_up(body.target_fid, _PATHS)
            case request_bodies.Rename():
                second = self._look_up(body.directory_fid, _PATHS)
            case request_bodies.RenameAt():
                second = self._look_up(body.new_fid, _PATHS)
            case request_bodies.Open() | request_bodies.Create() | request_bodies.XattrCreate():
                changes = True
            case _:
                pass
        entry = None
        if header.type in _ALLOWED:
            entry = self._look_up(number, _UNOPENED if changes else _ALLOWED[header.type])
        if new_fid is not None:
            self._reserve(new_fid)
        for used in (entry, second):
            if used is not None:
                used.users += 1
        if entry is not None:
            entry.changing = changes
            if header.type in _ENDING:
                # At once, whatever the result: clients reuse the number even after an error.
                del self._fids[number]
                entry.known = False
        request = Request(header, body, entry, second)
        self._tags[header.tag] = request
        self._requests[request] = _Flight(new_fid, changes=changes)
        return request

    def _look_up(self, fid: int, allowed: frozenset[FidState]) -> FidEntry[Kept]:
        entry = self._fids.get(fid)
        if entry is None:
            raise FormatError(f"fid: {fid} is not known", code=BAD_FID)
        if entry.changing:
            raise FormatError(f"fid: {fid} is just becoming something else", code=FID_BUSY)
        if entry.state not in allowed:
            raise FormatError(
                f"fid: {fid} stands for {entry.state.value}, which this cannot be done with", code=BAD_FID
            )
        return entry

    def _reserve(self, fid: int) -> None:
        if fid in self._fids or fid in self._reserved:
            raise FormatError(f"fid: {fid} is in use", code=BAD_FID)
        if self.fid_count >= self._limits.fids:
            raise RefusedError(f"the client has {self._limits.fids} fids, the most it may", code=TOO_MANY)
        self._reserved.add(fid)

    def finish(
        self, request: Request[Kept], reply: bytes | tuple[Buffer, ...], kept: Kept | None = None
    ) -> Actions[Kept]:
        """The request was performed, or has failed; ``reply`` is from `replies`, to its tag. Call this once for each
        request, even for one that the client no longer waits for.

        ``kept`` is for the fid that the request makes (AUTH, ATTACH, WALK, XATTRWALK) or changes (LOPEN, LCREATE,
        XATTRCREATE, WALK to itself): None if it has failed or, for a WALK, is incomplete. It is kept for this fid
        alone; a changed fid may keep its object.
        """
        return self._end(request, (reply,) if isinstance(reply, bytes) else reply, kept)

    def fail(self, request: Request[Kept], number: int) -> Actions[Kept]:
        """As `finish`, with this errno."""
        return self._end(request, (replies.error(request.tag, number),), None)

    def abandon(self, request: Request[Kept]) -> Actions[Kept]:
        """As `finish`, for a request that was interrupted before it had any effect: it is not answered, as if it had
        never arrived.
        """
        if not request.interrupted:
            raise ValueError(f"tag {request.tag}: the client waits for the answer")
        return self._end(request, (), None)

    def _end(self, request: Request[Kept], reply: Sequence[Buffer], kept: Kept | None) -> Actions[Kept]:
        if kept is not None and request.type not in _BECOMES:
            raise ValueError(f"a request of type {request.type} makes no fid")
        flight = self._requests.pop(request)
        gone: list[Kept] = []
        if request.fid is not None and flight.changes:
            request.fid.changing = False
        if flight.new_fid is not None and flight.current:
            self._reserved.remove(flight.new_fid)
        if kept is not None:
            self._keep(request, flight, kept, gone)
        for used in (request.fid, request.second):
            if used is not None:
                used.users -= 1
                if not used.users and not used.known:
                    gone.append(used.kept)
        if not flight.current:
            output: Sequence[Buffer] = ()
            if self._version_reply is not None and not self._requests:
                output, self._version_reply = (self._version_reply,), None
            return Actions(output, gone=gone)
        for tag in (request.tag, *flight.flushes):
            del self._tags[tag]
        if flight.flushes:
            reply = (*reply, *[replies.done(tag, Type.FLUSH) for tag in flight.flushes])
        return Actions(reply, gone=gone)

    def _keep(self, request: Request[Kept], flight: _Flight, kept: Kept, gone: list[Kept]) -> None:
        """``kept`` becomes that of the fid which the request makes or changes."""
        entry = request.fid
        state = _BECOMES[request.type]
        if flight.new_fid is None and entry is not None and entry.kept is kept:
            entry.state = state
        elif not flight.current:
            gone.append(kept)
        elif flight.new_fid is not None:
            self._fids[flight.new_fid] = FidEntry(kept, state)
        elif entry is not None:
            # Other requests may still use its old object.
            entry.known = False
            self._fids[request.body[0]] = FidEntry(kept, state)
