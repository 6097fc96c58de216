"""A second process that makes some of many files, where that saves time.

Half of what it takes to write a tree out is reading, decoding and verifying content, the other half the kernel's work:
neither needs to be done by one process alone. The files come in portions; whoever is done with one takes the next, so
that on a busy machine the mate, which may get little time, holds nobody up. It only makes files, under the names it is
told, and notes what they look like where its maker reads it. What it took and did not note (it failed, it was killed at
any moment) its maker makes anew: that is slower, never wrong.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

from holdfast.files.index.stat_index import Signature
from holdfast.files.linux import forked_worker

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Iterable, Sequence

    Make = Callable[[range], Iterable[tuple[int, Signature, int]]]
    """Makes the files of a portion: the number of each, once it is there, what it looks like, and its device."""

_TICKET = struct.Struct("=I")
_COUNT = struct.Struct("=q")
_ROW = struct.Struct("=QqqqQQ")
"""Device, modification time, change time, size, inode number, mode."""


class Mate:
    """A mate that is at work: made by `send`, and to be ended by `end`."""

    def __init__(self, process: int, tickets: int, portions: Sequence[range], notes: mmap.mmap, count: int) -> None:
        self._process = process
        self._tickets = tickets
        self._portions = portions
        self._notes = notes
        self._files = count

    def take(self) -> range | None:
        """The next portion that nobody has taken; None if there is none."""
        return _take(self._tickets, self._portions)

    @property
    def made(self) -> int:
        """How many files it has made so far."""
        return _COUNT.unpack_from(self._notes, 0)[0]

    def wait(self) -> None:
        """Return when it has come to its end."""
        forked_worker.wait(self._process)
        self._process = 0

    def look(self, number: int, device: int) -> Signature | None:
        """What the file of that ``number`` looks like, if it was made, on ``device``. Only after `wait`."""
        if not self._notes[_COUNT.size + number]:
            return None
        there, *values = _ROW.unpack_from(self._notes, _row_at(self._files, number))
        return Signature(*values) if there == device else None

    def end(self) -> None:
        """End the process, if it is still there, and forget what it noted."""
        if self._process:
            forked_worker.end(self._process)
            self._process = 0
        os.close(self._tickets)
        self._notes.close()


def send(portions: Sequence[range], make: Make) -> Mate | None:
    """Have a mate ``make`` some of the files, whose numbers are the ``portions``, one after the other from 0; None
    where that is not possible.

    ``make`` is called in a copy of this process: it must not change or use anything outside of it but the tree, and
    ends itself by raising.
    """
    import mmap

    try:
        tickets = _issue(len(portions))
    except OSError:
        return None
    if tickets is None:
        return None
    count = portions[-1].stop
    try:
        notes = mmap.mmap(-1, _row_at(count, count))
    except OSError:
        os.close(tickets)
        return None
    parent = os.getpid()
    process = forked_worker.start(lambda: _work(tickets, portions, notes, parent, make))
    if process is None:
        os.close(tickets)
        notes.close()
        return None
    return Mate(process, tickets, portions, notes, count)


def _issue(count: int) -> int | None:
    """A pipe that holds a ticket for each of ``count`` portions, and then ends; None if they do not go into it."""
    reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    tickets = b"".join(map(_TICKET.pack, range(count)))
    try:
        written = os.write(writing, tickets)
    except BlockingIOError:
        written = 0
    finally:
        os.close(writing)
    if written == len(tickets):
        return reading
    os.close(reading)
    return None


def _take(tickets: int, portions: Sequence[range]) -> range | None:
    ticket = os.read(tickets, _TICKET.size)
    if not ticket:
        return None
    number: int = _TICKET.unpack(ticket)[0]
    return portions[number]


def _row_at(count: int, number: int) -> int:
    """Where the row of a file is: behind the number of those made and a mark for each of the ``count``."""
    return _COUNT.size + count + number * _ROW.size


def _work(tickets: int, portions: Sequence[range], notes: mmap.mmap, parent: int, make: Make) -> None:
    """What the mate does, in its own process. Left behind by its maker, it stops."""
    import gc

    gc.disable()  # to look at objects is to copy the pages that they are in
    count, made = portions[-1].stop, 0
    while (portion := _take(tickets, portions)) is not None:
        for number, signature, device in make(portion):
            _ROW.pack_into(notes, _row_at(count, number), device, *signature)
            notes[_COUNT.size + number] = 1  # last: a mate may be killed in between
            made += 1
            _COUNT.pack_into(notes, 0, made)
            if os.getppid() != parent:
                return
