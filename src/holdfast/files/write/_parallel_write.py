"""A second process that writes some of many files, where that saves time.

Half of the time of writing a tree goes into reading, decoding and verifying content, and half into the kernel's work.
Two processes share both. The files come in portions, and a process that has finished one takes the next: on a busy
machine, where the second process gets little time, the first does not wait for it.

The second process only makes files, under given temporary names, and stores the signature of each file in shared
memory. The first process makes the files again that the second took and did not finish. So the second process can fail
or be killed at any moment: writing is then slower, never wrong.
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

    MakeFiles = Callable[[range], Iterable[tuple[int, Signature, int]]]
    """Makes the files of a portion; gives of each file, once it is there, its number, signature and device."""

_PORTION = struct.Struct("=I")
"""The number of a portion, in the queue."""
_COUNT = struct.Struct("=q")
"""How many files are made, at the beginning of the results."""
_RESULT = struct.Struct("=QqqqQQ")
"""Device, modification time, change time, size, inode number, mode."""


class SecondWriter:
    """The second process, as the first one sees it. Made by `start`; the caller calls `end`."""

    def __init__(self, process: int, queue: int, portions: Sequence[range], results: mmap.mmap, count: int) -> None:
        self._process = process
        self._queue = queue
        self._portions = portions
        self._results = results
        self._count = count

    def take_portion(self) -> range | None:
        """Take the next portion, for this process to make; None if all are taken."""
        return _take_portion(self._queue, self._portions)

    @property
    def files_made(self) -> int:
        """How many files the second process has made so far."""
        return _COUNT.unpack_from(self._results, 0)[0]

    def wait(self) -> None:
        """Return when the second process has ended."""
        forked_worker.wait(self._process)
        self._process = 0

    def signature_of(self, number: int, device: int) -> Signature | None:
        """The signature of the file ``number``; None if the second process has not made it on ``device``.

        Only after `wait`.
        """
        if not self._results[_COUNT.size + number]:
            return None
        made_on, *values = _RESULT.unpack_from(self._results, _offset(self._count, number))
        return Signature(*values) if made_on == device else None

    def end(self) -> None:
        """End the process, if it still runs, and forget its results."""
        if self._process:
            forked_worker.end(self._process)
            self._process = 0
        os.close(self._queue)
        self._results.close()


def start(portions: Sequence[range], make_files: MakeFiles) -> SecondWriter | None:
    """Start a second process that makes some of the files; None where that is impossible.

    The files are numbered from 0, and the ``portions`` are their numbers, one range after the other. ``make_files``
    runs in a copy of this process. Outside the copy it may change only the tree. The copy ends if it raises.
    """
    import mmap

    try:
        queue = _make_queue(len(portions))
    except OSError:
        return None
    if queue is None:
        return None
    count = portions[-1].stop
    try:
        results = mmap.mmap(-1, _offset(count, count))
    except OSError:
        os.close(queue)
        return None
    parent = os.getpid()
    process = forked_worker.start(lambda: _make_portions(queue, portions, results, parent, make_files))
    if process is None:
        os.close(queue)
        results.close()
        return None
    return SecondWriter(process, queue, portions, results, count)


def _make_queue(count: int) -> int | None:
    """A pipe that holds the numbers of ``count`` portions, and then ends; None if they do not fit into it.

    Both processes read from it. A read of so few bytes is atomic, so each portion is taken once.
    """
    reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    numbers = b"".join(map(_PORTION.pack, range(count)))
    try:
        written = os.write(writing, numbers)
    except BlockingIOError:
        written = 0
    finally:
        os.close(writing)
    if written == len(numbers):
        return reading
    os.close(reading)
    return None


def _take_portion(queue: int, portions: Sequence[range]) -> range | None:
    data = os.read(queue, _PORTION.size)
    if not data:
        return None
    number: int = _PORTION.unpack(data)[0]
    return portions[number]


def _offset(count: int, number: int) -> int:
    """Where the result of a file is stored: after the count of those made, and a byte "it is made" for each of the
    ``count`` files.
    """
    return _COUNT.size + count + number * _RESULT.size


def _make_portions(
    queue: int, portions: Sequence[range], results: mmap.mmap, parent: int, make_files: MakeFiles
) -> None:
    """The work of the second process. It stops when its parent has ended."""
    import gc

    gc.disable()  # a collection writes to every object, and so copies all the pages that are shared until then
    count, made = portions[-1].stop, 0
    while (portion := _take_portion(queue, portions)) is not None:
        for number, signature, device in make_files(portion):
            _RESULT.pack_into(results, _offset(count, number), device, *signature)
            results[_COUNT.size + number] = 1  # last: the process may be killed in between
            made += 1
            _COUNT.pack_into(results, 0, made)
            if os.getppid() != parent:
                return
