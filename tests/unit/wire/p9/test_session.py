"""One client's connection: what it may do with tags and fids, and when objects kept for fids are given back (I12)."""

from __future__ import annotations

import errno
import struct
from typing import Any

import pytest

from holdfast.model.errors import FormatError
from holdfast.testing.p9_client import Qid, Reply, decode_reply, encode_request, frame
from holdfast.wire.p9 import replies
from holdfast.wire.p9.protocol_constants import NO_FID, NO_TAG, RLERROR, VERSION, Type
from holdfast.wire.p9.replies import Qid as ServedQid
from holdfast.wire.p9.session import Actions, FidState, Limits, Request, Session

QID = ServedQid(0, 0, 1)
LIMITS = Limits(msize=8192)
CHANGE = (1, *[0] * 9)


class Peer:
    """A client and a server of one session, which keeps a text for each fid."""

    def __init__(self, limits: Limits = LIMITS, *, version: bool = True) -> None:
        self.session: Session[str] = Session(limits)
        if version:
            assert self.said(self.ask(Type.VERSION, 8192, VERSION, tag=NO_TAG)) == [(Type.VERSION, NO_TAG)]

    def ask(self, kind: int, *fields: Any, tag: int = 1) -> Actions[str]:
        return self.session.receive(memoryview(encode_request(kind, tag, *fields)))

    def begin(self, kind: int, *fields: Any, tag: int = 1) -> Request[str]:
        actions = self.ask(kind, *fields, tag=tag)
        assert actions.request is not None, self.decoded(actions)
        assert actions == Actions(request=actions.request)
        assert (actions.request.type, actions.request.tag) == (kind, tag)
        return actions.request

    def refused(self, kind: int, *fields: Any, tag: int = 1) -> int:
        actions = self.ask(kind, *fields, tag=tag)
        assert actions == Actions(actions.output)
        (reply,) = self.decoded(actions)
        assert (reply.type, reply.tag) == (RLERROR, tag)
        return reply.fields[0]

    def done(self, request: Request[str], kept: str | None = None) -> Actions[str]:
        return self.session.finish(request, replies.done(request.tag, request.type), kept)

    def attach(self, fid: int, kept: str = "root") -> None:
        request = self.begin(Type.ATTACH, fid, NO_FID, b"", b"", 0)
        self.session.finish(request, replies.found(1, Type.ATTACH, QID), kept)

    def walk(self, fid: int, to: int, kept: str, *names: bytes) -> Actions[str]:
        request = self.begin(Type.WALK, fid, to, names)
        return self.session.finish(request, replies.walked(1, [QID] * len(names)), kept)

    def open(self, fid: int, kept: str) -> Actions[str]:
        request = self.begin(Type.LOPEN, fid, 0)
        return self.session.finish(request, replies.opened(1, Type.LOPEN, QID), kept)

    def clunk(self, fid: int) -> Actions[str]:
        return self.done(self.begin(Type.CLUNK, fid))

    @staticmethod
    def decoded(actions: Actions[str]) -> list[Reply]:
        """Its replies, each in as many pieces as it has."""
        data, found = b"".join(actions.output), list[Reply]()
        while data:
            (size,) = struct.unpack_from("<I", data)
            found.append(decode_reply(data[:size]))
            data = data[size:]
        return found

    def said(self, actions: Actions[str]) -> list[tuple[int, int]]:
        return [(reply.type, reply.tag) for reply in self.decoded(actions)]


# Versions


def test_the_smaller_message_size_is_agreed_upon() -> None:
    for offered, agreed in ((4096, 4096), (8192, 8192), (1 << 30, 8192)):
        peer = Peer(version=False)
        (reply,) = peer.decoded(peer.ask(Type.VERSION, offered, VERSION, tag=NO_TAG))
        assert reply.fields == (agreed, VERSION)
        assert (peer.session.msize, peer.session.most_data) == (agreed, agreed - 24)
        assert peer.refused(Type.READ, 1, 0, agreed - 10) == errno.EINVAL
        assert peer.refused(Type.READ, 1, 0, agreed - 11) == errno.EBADF


@pytest.mark.parametrize("version", [b"9P2000", b"9P2000.u", b"9P2000.L.more", b"", b"9P2000.l", b"x" * 1000])
def test_another_version_is_unknown_and_may_be_followed_by_a_known_one(version: bytes) -> None:
    peer = Peer(version=False)
    (reply,) = peer.decoded(peer.ask(Type.VERSION, 8192, version, tag=NO_TAG))
    assert reply.fields == (8192, b"unknown")
    assert peer.refused(Type.ATTACH, 1, NO_FID, b"", b"", 0) == errno.EPROTO
    assert peer.said(peer.ask(Type.VERSION, 8192, VERSION, tag=NO_TAG)) == [(Type.VERSION, NO_TAG)]
    peer.attach(1)


@pytest.mark.parametrize("msize", [0, 23, 4095])
def test_a_message_size_that_nothing_fits_in_is_refused_and_changes_nothing(msize: int) -> None:
    peer = Peer()
    peer.attach(1)
    assert peer.refused(Type.VERSION, msize, VERSION, tag=NO_TAG) == errno.EMSGSIZE
    peer.begin(Type.GETATTR, 1, 1)
    with pytest.raises(ValueError, match="msize"):
        Session(Limits(msize=4095))


def test_nothing_comes_before_a_version() -> None:
    peer = Peer(version=False)
    for kind, fields in ((Type.ATTACH, (1, NO_FID, b"", b"", 0)), (Type.FLUSH, (1,)), (Type.CLUNK, (1,))):
        assert peer.refused(kind, *fields) == errno.EPROTO


def test_the_tag_that_is_none_is_for_versions_alone() -> None:
    peer = Peer()
    assert peer.refused(Type.VERSION, 8192, VERSION, tag=1) == errno.EPROTO
    assert peer.refused(Type.ATTACH, 1, NO_FID, b"", b"", 0, tag=NO_TAG) == errno.EPROTO
    assert peer.refused(Type.FLUSH, 1, tag=NO_TAG) == errno.EPROTO


def test_a_new_version_ends_all_that_was() -> None:
    peer = Peer()
    peer.attach(1)
    peer.walk(1, 2, "two")
    peer.walk(1, 3, "three")
    peer.begin(Type.READLINK, 2, tag=5)
    reading = peer.begin(Type.GETATTR, 2, 1, tag=6)
    walking = peer.begin(Type.WALK, 1, 9, (), tag=7)
    assert peer.ask(Type.FLUSH, 6, tag=8) == Actions(interrupted=(reading,))
    actions = peer.ask(Type.VERSION, 4096, VERSION, tag=NO_TAG)
    assert not actions.output, "requests of the earlier version are not finished"
    assert {request.tag for request in actions.interrupted} == {5, 6, 7}
    assert actions.gone == ["three"], "requests use the others"
    assert peer.refused(Type.ATTACH, 1, NO_FID, b"", b"", 0) == errno.EPROTO
    assert peer.done(reading) == Actions(gone=[])
    assert peer.session.finish(walking, replies.walked(7, []), "nine") == Actions(gone=["nine", "root"])
    (last,) = (request for request in actions.interrupted if request.tag == 5)
    ended = peer.session.fail(last, errno.EINTR)
    assert peer.said(ended) == [(Type.VERSION, NO_TAG)]
    assert ended.gone == ["two"]
    assert (peer.session.in_flight, peer.session.fid_count, peer.session.msize) == (0, 0, 4096)
    peer.attach(1)


def test_only_the_last_of_several_versions_is_answered() -> None:
    peer = Peer()
    peer.attach(1)
    request = peer.begin(Type.GETATTR, 1, 1)
    for msize in (4096, 5000):
        assert not peer.ask(Type.VERSION, msize, VERSION, tag=NO_TAG).output
    (reply,) = peer.decoded(peer.done(request))
    assert reply.fields == (5000, VERSION)


def test_the_end_of_a_connection_gives_everything_back_once() -> None:
    peer = Peer()
    peer.attach(1)
    peer.walk(1, 2, "two")
    request = peer.begin(Type.CLUNK, 2, tag=4)
    actions = peer.session.close()
    assert (actions.interrupted, actions.gone, actions.output) == ([request], ["root"], ())
    assert request.interrupted
    assert peer.done(request) == Actions(gone=["two"])
    assert peer.session.close() == Actions(interrupted=[], gone=[])


# Tags


def test_a_tag_in_flight_cannot_be_used_again() -> None:
    peer = Peer()
    peer.attach(1)
    request = peer.begin(Type.SETATTR, *CHANGE, tag=7)
    peer.ask(Type.FLUSH, 7, tag=8)
    for tag in (7, 8):
        with pytest.raises(FormatError, match=f"tag: {tag} is in flight"):
            peer.ask(Type.SETATTR, *CHANGE, tag=tag)
    assert peer.said(peer.done(request)) == [(Type.SETATTR, 7), (Type.FLUSH, 8)]
    peer.done(peer.begin(Type.SETATTR, *CHANGE, tag=7))
    peer.done(peer.begin(Type.SETATTR, *CHANGE, tag=8))


def test_replies_may_come_in_any_order() -> None:
    peer = Peer()
    peer.attach(1)
    first, second = (peer.begin(Type.SETATTR, *CHANGE, tag=tag) for tag in (1, 2))
    assert peer.said(peer.done(second)) == [(Type.SETATTR, 2)]
    assert peer.said(peer.done(first)) == [(Type.SETATTR, 1)]


def test_a_reply_in_pieces_is_sent_as_it_is() -> None:
    peer = Peer()
    peer.attach(1)
    peer.walk(1, 2, "two")
    peer.open(2, "two")
    content = memoryview(b"content")
    request = peer.begin(Type.READ, 2, 0, 100)
    peer.ask(Type.FLUSH, 1, tag=2)
    actions = peer.session.finish(request, replies.data(1, Type.READ, content))
    assert any(piece is content for piece in actions.output)
    assert [reply.fields for reply in peer.decoded(actions)] == [(b"content",), ()]


def test_a_flush_is_answered_after_what_it_flushes() -> None:
    peer = Peer()
    peer.attach(1)
    request = peer.begin(Type.SETATTR, *CHANGE, tag=1)
    assert peer.ask(Type.FLUSH, 1, tag=2) == Actions(interrupted=(request,))
    assert request.interrupted
    assert peer.ask(Type.FLUSH, 1, tag=3) == Actions(), "it is interrupted already"
    assert peer.ask(Type.FLUSH, 2, tag=4) == Actions(), "a flush of a flush"
    flush = (Type.FLUSH, 2), (Type.FLUSH, 3), (Type.FLUSH, 4)
    assert peer.said(peer.done(request)) == [(Type.SETATTR, 1), *flush]


def test_a_request_without_effect_can_be_given_up() -> None:
    peer = Peer()
    peer.attach(1)
    request = peer.begin(Type.WALK, 1, 2, (), tag=1)
    with pytest.raises(ValueError, match="waits"):
        peer.session.abandon(request)
    peer.ask(Type.FLUSH, 1, tag=2)
    assert peer.said(peer.session.abandon(request)) == [(Type.FLUSH, 2)]
    peer.walk(1, 2, "two")


@pytest.mark.parametrize("tag", [1, 2, 9, NO_TAG], ids=["answered", "its own", "unknown", "none"])
def test_a_flush_of_what_is_not_in_flight_is_answered_at_once(tag: int) -> None:
    peer = Peer()
    peer.attach(1)
    assert peer.said(peer.ask(Type.FLUSH, tag, tag=2)) == [(Type.FLUSH, 2)]
    assert peer.said(peer.ask(Type.FLUSH, tag, tag=2)) == [(Type.FLUSH, 2)]


def test_so_many_requests_and_no_more() -> None:
    peer = Peer(Limits(msize=8192, requests=2))
    peer.attach(1)
    requests = [peer.begin(Type.GETATTR, 1, 1, tag=tag) for tag in (1, 2)]
    assert peer.session.full
    assert peer.refused(Type.GETATTR, 1, 1, tag=3) == errno.ENFILE
    assert peer.ask(Type.FLUSH, 1, tag=3).interrupted, "a flush takes no room"
    peer.done(requests[0])
    assert not peer.session.full
    peer.begin(Type.GETATTR, 1, 1, tag=4)


def test_what_is_wrong_with_a_frame_ends_the_connection_and_with_a_request_only_that() -> None:
    peer = Peer()
    with pytest.raises(FormatError, match="header"):
        peer.session.receive(memoryview(b"\x08\0\0\0\x78\0\0"))
    (reply,) = peer.decoded(peer.session.receive(memoryview(frame(200, 4, b""))))
    assert (reply.tag, reply.fields) == (4, (errno.EOPNOTSUPP,))
    (reply,) = peer.decoded(peer.session.receive(memoryview(frame(Type.CLUNK, 4, b"ab"))))
    assert (reply.tag, reply.fields) == (4, (errno.EINVAL,))


# Fids


def test_a_fid_is_there_once_the_request_that_makes_it_is_finished() -> None:
    peer = Peer()
    peer.attach(1)
    request = peer.begin(Type.WALK, 1, 2, (b"a",))
    assert request.fid is not None
    assert (request.fid.kept, request.fid.state) == ("root", FidState.PATH)
    assert peer.refused(Type.GETATTR, 2, 1, tag=2) == errno.EBADF
    assert peer.refused(Type.WALK, 1, 2, (), tag=2) == errno.EBADF, "the number is taken"
    peer.session.finish(request, replies.walked(1, [QID]), "two")
    found = peer.begin(Type.GETATTR, 2, 1)
    assert found.fid is not None
    assert found.fid.kept == "two"


def test_a_walk_that_ends_early_makes_no_fid() -> None:
    peer = Peer()
    peer.attach(1)
    request = peer.begin(Type.WALK, 1, 2, (b"a", b"b"))
    peer.session.finish(request, replies.walked(1, [QID]))
    assert peer.refused(Type.CLUNK, 2) == errno.EBADF, "as Linux does then"
    peer.walk(1, 2, "two")


def test_a_walk_to_itself_replaces_what_is_kept() -> None:
    peer = Peer()
    peer.attach(1)
    reading = peer.begin(Type.GETATTR, 1, 1, tag=8)
    walking = peer.begin(Type.WALK, 1, 1, (b"a",), tag=9)
    assert peer.refused(Type.GETATTR, 1, 1) == errno.EBUSY
    assert peer.session.finish(walking, replies.walked(9, [QID]), "a").gone == [], "a request uses the old one"
    assert reading.fid is not None
    assert reading.fid.kept == "root"
    assert peer.done(reading).gone == ["root"]
    failing = peer.begin(Type.WALK, 1, 1, (b"b", b"c"))
    assert peer.session.finish(failing, replies.walked(1, [QID])).gone == []
    assert peer.walk(1, 1, "d", b"d").gone == ["a"]
    same = peer.begin(Type.WALK, 1, 1, ())
    assert peer.session.finish(same, replies.walked(1, [])).gone == []
    assert peer.clunk(1).gone == ["d"]


def test_the_end_of_another_request_does_not_end_a_change() -> None:
    peer = Peer()
    peer.attach(1)
    reading = peer.begin(Type.GETATTR, 1, 1, tag=8)
    peer.begin(Type.LOPEN, 1, 0, tag=9)
    peer.done(reading)
    assert peer.refused(Type.LOPEN, 1, 0) == errno.EBUSY


def test_what_is_clunked_is_gone_when_no_request_uses_it() -> None:
    peer = Peer()
    peer.attach(1)
    peer.walk(1, 2, "two")
    peer.open(2, "two")
    reading = peer.begin(Type.READ, 2, 0, 10, tag=5)
    clunking = peer.begin(Type.CLUNK, 2, tag=6)
    assert peer.refused(Type.READ, 2, 0, 10) == errno.EBADF
    peer.walk(1, 2, "another two")
    assert peer.done(clunking).gone == []
    assert reading.fid is not None
    assert reading.fid.kept == "two"
    assert peer.done(reading).gone == ["two"]
    assert peer.clunk(2).gone == ["another two"]


@pytest.mark.parametrize("kind", [Type.CLUNK, Type.REMOVE])
def test_a_fid_is_gone_even_if_its_end_fails(kind: Type) -> None:
    peer = Peer()
    peer.attach(1)
    actions = peer.session.fail(peer.begin(kind, 1), errno.EACCES)
    assert [reply.fields for reply in peer.decoded(actions)] == [(errno.EACCES,)]
    assert actions.gone == ["root"]
    assert peer.refused(kind, 1) == errno.EBADF


def test_what_is_open_is_not_opened_again_or_walked_on() -> None:
    peer = Peer()
    peer.attach(1)
    assert peer.open(1, "root").gone == [], "the same is kept"
    assert peer.refused(Type.LOPEN, 1, 0) == errno.EBADF
    assert peer.refused(Type.LCREATE, 1, b"n", 0, 0, 0) == errno.EBADF
    assert peer.refused(Type.XATTRCREATE, 1, b"n", 0, 0) == errno.EBADF
    assert peer.refused(Type.WALK, 1, 1, (b"a",)) == errno.EBADF
    peer.walk(1, 2, "two")  # Linux walks from an open one to another.
    assert peer.open(2, "opened").gone == ["two"]


def test_a_creation_makes_the_directorys_fid_the_file() -> None:
    peer = Peer()
    peer.attach(1)
    request = peer.begin(Type.LCREATE, 1, b"n", 2, 0o644, 0)
    actions = peer.session.finish(request, replies.opened(1, Type.LCREATE, QID), "file")
    assert actions.gone == ["root"]
    writing = peer.begin(Type.WRITE, 1, 0, b"a")
    assert writing.fid is not None
    assert (writing.fid.kept, writing.fid.state) == ("file", FidState.OPEN)


PATH_ONLY = (
    (Type.GETATTR, (7, 1)),
    (Type.SETATTR, (7, *CHANGE[1:])),
    (Type.STATFS, (7,)),
    (Type.READLINK, (7,)),
    (Type.MKDIR, (7, b"n", 0, 0)),
    (Type.MKNOD, (7, b"n", 0, 0, 0, 0)),
    (Type.SYMLINK, (7, b"n", b"t", 0)),
    (Type.UNLINKAT, (7, b"n", 0)),
    (Type.RENAMEAT, (7, b"n", 1, b"n")),
    (Type.RENAMEAT, (1, b"n", 7, b"n")),
    (Type.RENAME, (7, 1, b"n")),
    (Type.RENAME, (1, 7, b"n")),
    (Type.LINK, (7, 1, b"n")),
    (Type.LINK, (1, 7, b"n")),
    (Type.XATTRWALK, (7, 8, b"")),
    (Type.WALK, (7, 8, ())),
)
OPEN_ONLY = (
    (Type.READDIR, (7, 0, 1000)),
    (Type.FSYNC, (7, 0)),
    (Type.LOCK, (7, 0, 0, 0, 0, 0, b"")),
    (Type.GETLOCK, (7, 0, 0, 0, 0, b"")),
)
READ, WRITE = (Type.READ, (7, 0, 1)), (Type.WRITE, (7, 0, b"a"))
NOT_ALLOWED = {
    FidState.PATH: (*OPEN_ONLY, READ, WRITE),
    FidState.OPEN: (),
    FidState.ATTRIBUTE: (*PATH_ONLY, *OPEN_ONLY, WRITE, (Type.LOPEN, (7, 0))),
    FidState.NEW_ATTRIBUTE: (*PATH_ONLY, *OPEN_ONLY, READ, (Type.LOPEN, (7, 0))),
    FidState.AUTH: (*PATH_ONLY, *OPEN_ONLY, (Type.LOPEN, (7, 0))),
}


def made(state: FidState) -> Peer:
    """A session whose fid 7 stands for this, and 1 for the root."""
    peer = Peer()
    peer.attach(1)
    if state == FidState.AUTH:
        peer.session.finish(peer.begin(Type.AUTH, 7, b"", b"", 0), replies.found(1, Type.AUTH, QID), "seven")
        return peer
    if state == FidState.ATTRIBUTE:
        peer.session.finish(peer.begin(Type.XATTRWALK, 1, 7, b"user.a"), replies.attribute(1, 3), "seven")
        return peer
    peer.walk(1, 7, "seven")
    if state == FidState.OPEN:
        peer.open(7, "seven")
    elif state == FidState.NEW_ATTRIBUTE:
        peer.done(peer.begin(Type.XATTRCREATE, 7, b"user.a", 3, 0), "seven")
    return peer


@pytest.mark.parametrize("state", FidState)
def test_a_fid_is_good_for_what_it_stands_for_alone(state: FidState) -> None:
    for kind, fields in (*PATH_ONLY, *OPEN_ONLY, READ, WRITE, (Type.LOPEN, (7, 0)), (Type.REMOVE, (7,))):
        peer = made(state)
        if (kind, fields) in NOT_ALLOWED[state] or (state, kind) == (FidState.OPEN, Type.LOPEN):
            assert peer.refused(kind, *fields) == errno.EBADF
        else:
            request = peer.begin(kind, *fields)
            used = request.second if fields[0] == 1 else request.fid
            assert used is not None
            assert (used.kept, used.state) == ("seven", state)
    assert made(state).clunk(7).gone == ["seven"]


def test_a_request_holds_on_to_both_of_its_fids() -> None:
    for kind, fields in ((Type.LINK, (1, 7, b"n")), (Type.RENAME, (1, 7, b"n")), (Type.RENAMEAT, (1, b"n", 7, b"n"))):
        peer = made(FidState.PATH)
        request = peer.begin(kind, *fields, tag=9)
        assert peer.clunk(7).gone == []
        assert peer.clunk(1).gone == []
        assert peer.done(request).gone == ["root", "seven"]
        peer = made(FidState.PATH)
        assert peer.refused(kind, *(99 if field == 7 else field for field in fields)) == errno.EBADF
        request = peer.begin(kind, *(7 if field == 1 else field for field in fields), tag=9)
        assert peer.clunk(7).gone == []
        assert peer.done(request).gone == ["seven"], "one fid as both is gone once"


def test_authentication_goes_by_a_fid_of_its_own() -> None:
    peer = made(FidState.AUTH)
    assert peer.refused(Type.ATTACH, 8, 1, b"", b"", 0) == errno.EBADF
    assert peer.refused(Type.ATTACH, 8, 99, b"", b"", 0) == errno.EBADF
    request = peer.begin(Type.ATTACH, 8, 7, b"", b"", 0)
    assert request.fid is None
    assert request.second is not None
    assert request.second.kept == "seven"


@pytest.mark.parametrize("fid", [0, NO_FID, NO_FID - 1])
def test_a_fid_that_is_not_known(fid: int) -> None:
    peer = Peer()
    peer.attach(1)
    for kind, fields in (*PATH_ONLY, *OPEN_ONLY, READ, WRITE, (Type.CLUNK, (7,)), (Type.REMOVE, (7,))):
        assert peer.refused(kind, *(fid if field == 7 else field for field in fields)) == errno.EBADF
    assert (peer.session.in_flight, peer.session.fid_count) == (0, 1)


def test_a_number_is_given_to_one_thing_alone() -> None:
    peer = Peer()
    peer.attach(1)
    for kind, fields in (
        (Type.ATTACH, (1, NO_FID, b"", b"", 0)),
        (Type.AUTH, (1, b"", b"", 0)),
        (Type.XATTRWALK, (1, 1, b"")),
    ):
        assert peer.refused(kind, *fields) == errno.EBADF
    peer.walk(1, 2, "two")
    assert peer.refused(Type.WALK, 1, 2, ()) == errno.EBADF
    assert peer.session.fid_count == 2


def test_so_many_fids_and_no_more() -> None:
    peer = Peer(Limits(msize=8192, fids=3))
    peer.attach(1)
    peer.walk(1, 2, "two")
    making = peer.begin(Type.WALK, 1, 3, (), tag=5)
    assert peer.refused(Type.WALK, 1, 4, ()) == errno.ENFILE
    peer.session.fail(making, errno.ENOENT)
    peer.walk(1, 4, "four")
    assert peer.session.fid_count == 3


def test_only_requests_that_make_something_have_something_to_keep() -> None:
    peer = Peer()
    peer.attach(1)
    request = peer.begin(Type.GETATTR, 1, 1)
    with pytest.raises(ValueError, match="makes no fid"):
        peer.done(request, "kept")
    peer.done(request)


def test_what_the_client_says_of_a_qid_is_what_was_said_to_it() -> None:
    peer = Peer()
    request = peer.begin(Type.ATTACH, 1, NO_FID, b"", b"", 0)
    (reply,) = peer.decoded(peer.session.finish(request, replies.found(1, Type.ATTACH, QID), "root"))
    assert reply.fields == (Qid(0, 0, 1),)
