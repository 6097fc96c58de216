"""What the kernel writes, byte by byte: fanotify's and inotify's events, and the mount table."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.files.watch import _fanotify_events as fanotify_events
from holdfast.files.watch import _inotify as inotify
from holdfast.files.watch import event_masks

FSID = b"FILESYST"


def handle(content: bytes) -> bytes:
    return struct.pack("=Ii", len(content), 1) + content


def record(kind: int, content: bytes, name: bytes | None = None) -> bytes:
    body = FSID + handle(content) + (b"" if name is None else name + b"\0")
    body += b"\0" * (-len(body) % 4)
    return struct.pack("=BBH", kind, 0, len(body) + 4) + body


def event(mask: int, *records: bytes) -> bytes:
    body = b"".join(records)
    return struct.pack("=IBBHQii", 24 + len(body), 3, 0, 24, mask, -1, 7) + body


def test_fanotify_events_with_names_and_handles() -> None:
    buffer = event(event_masks.MODIFY, record(2, b"dir-hand", b"name"), record(1, b"file-hand"))
    buffer += event(event_masks.ATTRIB | fanotify_events.ONDIR, record(2, b"dir-hand", b"."))
    buffer += event(event_masks.Q_OVERFLOW)
    assert list(fanotify_events.decode(buffer)) == [
        (event_masks.MODIFY, FSID + handle(b"dir-hand"), b"name", FSID + handle(b"file-hand"), 7),
        (event_masks.ATTRIB | fanotify_events.ONDIR, FSID + handle(b"dir-hand"), b".", None, 7),
        (event_masks.Q_OVERFLOW, None, b"", None, 7),
    ]


def test_fanotify_events_about_files_in_boring_directories_are_left_out() -> None:
    boring = FSID + handle(b"dir-hand")
    buffer = event(event_masks.MODIFY, record(2, b"dir-hand", b"name"), record(1, b"file-hand"))
    buffer += event(event_masks.MOVED_FROM | fanotify_events.ONDIR, record(2, b"dir-hand", b"sub"))
    buffer += event(event_masks.MODIFY, record(2, b"dir-othr", b"name"))
    found = [one.mask for one in fanotify_events.decode(buffer, {boring})]
    assert found == [event_masks.MOVED_FROM | fanotify_events.ONDIR, event_masks.MODIFY]


def test_of_fanotify_events_by_processes_that_are_passed_only_those_remain_that_move_directories() -> None:
    buffer = event(event_masks.MODIFY, record(2, b"dir-hand", b"name"), record(1, b"file-hand"))
    moved = event(event_masks.MOVED_FROM | fanotify_events.ONDIR, record(2, b"dir-hand", b"sub"))
    assert fanotify_events.without(buffer + moved + buffer + buffer, {7}) == moved
    assert fanotify_events.without(buffer + moved, {8}) == buffer + moved


def test_fanotify_records_that_are_not_known_are_passed_over() -> None:
    buffer = event(event_masks.MODIFY, record(99, b"whatever"), record(2, b"dir-hand", b"name"))
    assert list(fanotify_events.decode(buffer)) == [(event_masks.MODIFY, FSID + handle(b"dir-hand"), b"name", None, 7)]


@pytest.mark.parametrize(
    "buffer",
    [
        b"\1",
        event(2, record(2, b"d", b"n"))[:-4],
        struct.pack("=IBBHQii", 24, 9, 0, 24, 2, -1, 7),
        struct.pack("=IBBHQii", 0, 3, 0, 24, 2, -1, 7),
        event(2, struct.pack("=BBH", 2, 0, 4)),
        event(2, struct.pack("=BBH8sIi", 2, 0, 20, FSID, 1 << 31, 1)),
    ],
)
def test_fanotify_bytes_of_another_form(buffer: bytes) -> None:
    """I12: an error, not a crash and no endless loop."""
    with pytest.raises(ValueError, match="event"):
        list(fanotify_events.decode(fanotify_events.without(buffer, {8})))


def test_inotify_events() -> None:
    buffer = struct.pack("=iIII8s", 3, event_masks.CREATE, 0, 8, b"name") + struct.pack(
        "=iIII", -1, event_masks.Q_OVERFLOW, 0, 0
    )
    assert list(inotify.decode(buffer)) == [(3, event_masks.CREATE, 0, b"name"), (-1, event_masks.Q_OVERFLOW, 0, b"")]


@pytest.mark.parametrize("buffer", [b"\1", struct.pack("=iIII", 3, 2, 0, 16) + b"short"])
def test_inotify_bytes_cut_short(buffer: bytes) -> None:
    with pytest.raises(ValueError, match="cut short"):
        list(inotify.decode(buffer))


@given(st.binary(max_size=200))
def test_any_bytes_are_events_or_an_error(buffer: bytes) -> None:
    """I12."""
    for decode in (fanotify_events.decode, inotify.decode):
        try:
            list(decode(buffer))
        except ValueError:
            pass
