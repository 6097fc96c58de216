"""The native part of the keeper; docs/internals/native-loop.md explains it. What it holds is changed under its gate.

Methods may be called from any thread; what takes a lock lets go of the interpreter's while it waits.
"""

from collections.abc import Iterator
from types import TracebackType

class Gate:
    """A lock that one thread may take several times, given to threads in the order in which they come."""

    def acquire(self, blocking: bool = True) -> bool: ...
    def release(self) -> None: ...
    def __enter__(self) -> bool: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

class Keys:
    """A set of byte strings, or of devices with inode numbers (which it does not list)."""

    def add(self, key: bytes | tuple[int, int], /) -> None: ...
    def discard(self, key: bytes | tuple[int, int], /) -> None: ...
    def __contains__(self, key: bytes | tuple[int, int], /) -> bool: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[bytes]: ...

class Step:
    """What is known of an open step here."""

    created: Keys
    captured: Keys
    described: Keys
    touched: Keys
    contacts: Keys
    copied: int
    """As `OpenStep.copied`."""
    last: float
    """When it last did something here; 0 if it never did."""
    is_open: bool

    def take_records(self) -> bytes | None:
        """The records of what was carried out here since the last time, as a MessagePack array; None without any."""

    def take_before(self) -> bytes | None:
        """The same of `OpenStep.stats_before`: pairs."""

class Log:
    """The undo log: its journal, and what the finished steps left."""

    seq: int
    """The last sequence number that was given out."""
    is_off: bool
    """All is left to Python."""
    counts_names: bool
    most_copied: int
    copying: int
    """How many files Python copies without the gate."""
    read_at: int
    arrangement: int
    @property
    def moves(self) -> int: ...
    @property
    def written(self) -> int:
        """Bytes of the journal's segment."""

    @property
    def epoch(self) -> int: ...
    def __init__(self, gate: Gate, kept: int, device: int, /) -> None:
        """``kept`` is the directory of preimages, borrowed; ``device`` that of the workspace's root."""

    def new_step(self, step: int, reverses: bool, /) -> Step: ...
    def take_number(self) -> int: ...
    def set_journal(self, fd: int, written: int, /) -> None:
        """Append to this file, which is so long, from now on; -1: to none."""

    def append(self, frame: bytes, /) -> int:
        """Write a whole frame. Returns 0, or the errno."""

    def note_object(self, inode: int, changed: int, /) -> None:
        """A finished step left the object, with this ctime (ns); of a directory, its `directory_state`."""

    def drop_object(self, inode: int, /) -> None: ...
    def note_place(self, path: bytes, /) -> None:
        """A finished step left something at the path."""

    def drop_place(self, path: bytes, /) -> None: ...
    def forget_callers(self) -> None:
        """What callers change may belong to other steps from now on. Takes no lock."""

class Tree:
    """A supervised tree, whose calls are received here."""

    @property
    def counts(self) -> tuple[int, int]:
        """How many calls were carried out here, and how many were left to Python."""

    def __init__(self, log: Log, turn: Gate, listener: int, selector: int, root: int, /) -> None:
        """``turn`` is the right to carry calls out. The descriptors are borrowed: the filter's listener, what has
        something for the serving thread when it can be read, and the workspace's root.
        """

    def receive(self) -> bytes | None:
        """Wait for a call that is left to Python (``struct seccomp_notif``), and carry out the others. None if there is
        none after all. Raises `OSError` if none will come any more.
        """

    def set_territory(self, top: bytes, borders: tuple[bytes, ...], until: int, /) -> None:
        """The path of the workspace's root, and the paths that are out of reach, until then (`time.monotonic_ns`)."""

    def learn(self, tid: int, proc: int, umask: int, step: Step, epoch: int, /) -> None:
        """The thread, whose directory in ``/proc`` is ``proc``, sees what the keeper sees and may what it may; what it
        changes belongs to the step. The epoch is the one in which that was found out.
        """

    def release(self) -> None:
        """Close the directories that callers were led to, and forget threads that have ended."""

    def close(self) -> None:
        """Leave all calls to Python."""
