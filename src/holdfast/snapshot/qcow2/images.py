"""Disk images in the format qcow2: making, layering, saving states, merging and removing them.

A separate port from `holdfast.snapshot.port`: an image is a file, only a running machine works in it, and a capture is
of the disk, not a tree. All images of a directory are ours: each is named by its token, and is based on another of
them, or on none. Images from other places are copied in.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from holdfast.files.linux.process_lock import exclusive
from holdfast.model.clock import SystemClock
from holdfast.model.errors import FormatError, NotFoundError, RefusedError, StorageError, UsageError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.paths import display
from holdfast.snapshot.port import Token
from holdfast.snapshot.private_directories import make_private
from holdfast.snapshot.qcow2._header import read_header
from holdfast.snapshot.qcow2._qemu_img import LONG_SECONDS, QemuImg

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from holdfast.model.clock import Clock
    from holdfast.snapshot.qcow2._header import Header
    from holdfast.snapshot.qcow2._qemu_img import Checked, State

Format = Literal["qcow2", "raw"]

MAX_BYTES = 1 << 42
"""Of an image, and of the disk that it is."""
_LEAST_BYTES = 512
_MOST_LAYERS = 100
_MOST_STATES = 1000
_TOKEN_BYTES = 8
_FILE = re.compile(rb"([0-9a-f]{16})\.qcow2\Z")
_UNFINISHED = re.compile(rb"[0-9a-f]{16}\.qcow2\.new\Z")
_STATE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}\Z")
"""(A digit at the beginning could look like a number that qemu-img has given to another state.)"""


class Image(NamedTuple):
    """A disk image."""

    token: Token
    path: bytes
    """The file for a machine, as qcow2. While the machine runs, it must be the only user."""
    size: int
    """Bytes of the disk."""
    allocated: int
    """Bytes that the file takes."""
    base: Token | None
    """The image from which clusters are read that were not written since."""
    stands_on_it: tuple[Token, ...]
    """The images that have this one as their base: while there are any, it must not be written to."""
    states: tuple[State, ...]
    """The states saved in it, oldest first."""


class Images:
    """The images in a directory, which nobody else writes to but the machines that run on them.

    Methods that change an image wait for other processes' changes, and raise `LockedError` after too long a wait,
    `RefusedError` with the code ``in_use`` if a machine runs on it or another image is based on it. All methods raise
    `StorageError`, `NotFoundError` for an unknown token, `FormatError` for an image that is damaged or refers to
    anything except another image of the directory. Unfinished images of killed processes are removed.
    """

    def __init__(
        self,
        directory: bytes,
        *,
        clock: Clock | None = None,
        random: Callable[[int], bytes] = secrets.token_bytes,
        timeout: float = 30.0,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        """The directory, an absolute path, is made (0700) when it is needed. No image, and no disk, has more than
        ``max_bytes``.
        """
        self._directory = directory
        self._clock = SystemClock() if clock is None else clock
        self._random = random
        self._timeout = timeout
        self._max_bytes = max_bytes

    # -- what there is ------------------------------------------------------------------------------------------------

    def images(self) -> Sequence[Token]:
        """All images, by their tokens."""
        try:
            names = os.listdir(self._directory)
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise StorageError(f"cannot list {display(self._directory)}: {error.strerror}") from error
        return sorted(Token(found[1].decode()) for name in names if (found := _FILE.match(name)))

    def image(self, token: Token) -> Image:
        """One of them. Raises `RefusedError` as well while a machine writes to it."""
        header, *_ = self._chain(token)
        info = self._qemu().info(_name(token))
        return Image(
            token,
            self._path(token),
            header.size,
            info.actual_size,
            _base(header),
            tuple(self._children(token)),
            info.snapshots,
        )

    def check(self, token: Token, *, repair: bool = False) -> Checked:
        """Check the structure of an image; ``repair`` frees clusters that a killed process has leaked. A corrupt image
        is never written to.
        """
        with self._changing():
            self._chain(token)
            return self._qemu().check(_name(token), repair=repair)

    # -- making -------------------------------------------------------------------------------------------------------

    def create(self, size: int) -> Image:
        """An image of an empty disk of ``size`` bytes, a multiple of 512."""
        self._check_size(size)
        with self._making() as (token, name):
            self._qemu()("create", "-q", "-f", "qcow2", name, str(size))
        return self.image(token)

    def adopt(self, source: bytes, form: Format) -> Image:
        """A copy of an image from another place, whose format the caller must know: a guess could be misled by the
        disk's contents. Raises `RefusedError` for one that refers to other files, or is encrypted.
        """
        path = os.path.abspath(source)
        if form == "qcow2":
            header = read_header(path)
            _refuse(header, path)
            if header.backing is not None:
                raise RefusedError(
                    f"{display(path)} is based on another file, {display(header.backing)!r}",
                    hint="merge them where it comes from: qemu-img convert -O qcow2",
                    code="image_refers",
                )
            self._check_size(header.size)
        else:
            self._check_size(_size_of(path))
        with self._making() as (token, name):
            self._qemu()("convert", "-q", "-f", form, "-O", "qcow2", path, name, seconds=LONG_SECONDS)
        return self.image(token)

    def overlay(self, token: Token) -> Image:
        """A new image based on another one's present state, in constant time; unwritten clusters are shared. From then
        on the base cannot change, as long as an image is based on it.
        """
        with self._making() as (made, name):
            chain = self._chain(token)
            if len(chain) >= _MOST_LAYERS:
                raise RefusedError(
                    f"the image {token} stands on {len(chain) - 1} others already",
                    hint="merge it with its base, or put it on another one",
                )
            self._refuse_used(token)
            self._qemu()("create", "-q", "-f", "qcow2", "-b", _name(token), "-F", "qcow2", name)
        return self.image(made)

    # -- states within an image ---------------------------------------------------------------------------------------

    def save(self, token: Token, state: str) -> None:
        """Save the present disk within the image, as ``state``. Raises `RefusedError` (``exists``) if the name is in
        use, `UsageError` for an invalid name.
        """
        if not _STATE.match(state):
            raise UsageError(
                f"{state[:80]!r} is no name for a state",
                hint="a letter, then letters, digits, '_', '.', '-'; at most 64",
            )
        with self._writing(token) as states:
            if state in states:
                raise RefusedError(
                    f"there is a state {state} in the image already", hint="choose another", code="exists"
                )
            if len(states) >= _MOST_STATES:
                raise RefusedError(f"the image holds {len(states)} states already", hint="drop some of them")
            self._qemu()("snapshot", "-q", "-c", state, _name(token))

    def revert(self, token: Token, state: str) -> None:
        """Restore the disk to a saved state; its present state is lost, unless it is saved."""
        with self._writing(token) as states:
            _require(states, state)
            self._qemu()("snapshot", "-q", "-a", state, _name(token))

    def drop(self, token: Token, state: str) -> None:
        """Keep a state no more."""
        with self._writing(token) as states:
            _require(states, state)
            self._qemu()("snapshot", "-q", "-d", state, _name(token))

    # -- images and their bases ---------------------------------------------------------------------------------------

    def merge(self, token: Token) -> Token:
        """Write an image's clusters into its base, which is returned, and remove the image. After an interruption both
        exist, and it can be repeated. Raises `RefusedError` if the image has states, or others are based on either.
        """
        with self._writing(token) as states:
            base = _base(self._chain(token)[0])
            if base is None:
                raise RefusedError(f"the image {token} is based on nothing")
            if states:
                raise RefusedError(f"the image {token} holds states, which would be lost", hint="drop them first")
            others = [child for child in self._children(base) if child != token]
            if others:
                raise _in_use(base, others)
            self._qemu()("commit", "-q", "-f", "qcow2", "-d", _name(token), seconds=LONG_SECONDS)
            self._sync(base)
            self._unlink(token)
            return base

    def rebase(self, token: Token, base: Token | None) -> None:
        """Base an image on another one, or (None) on none; its disk stays the same, so the differences are copied.
        Raises `RefusedError` if the new base is based on it.
        """
        with self._changing():
            self._chain(token)
            if base is not None:
                self._chain(base)
                if token in (base, *self._ancestors(base)):
                    raise RefusedError(f"the image {base} stands on {token} itself")
                self._refuse_used(base)
            name = b"" if base is None else _name(base)
            self._qemu()("rebase", "-q", "-f", "qcow2", "-b", name, "-F", "qcow2", _name(token), seconds=LONG_SECONDS)
            self._sync(token)

    def remove(self, token: Token) -> None:
        """Remove an image with its states; does nothing if it is missing. Raises `RefusedError` as in `Images`."""
        with self._changing():
            if not os.path.lexists(self._path(token)):
                return
            children = self._children(token)
            if children:
                raise _in_use(token, children)
            if not self._is_beyond_repair(token):
                self._refuse_used(token)
            self._unlink(token)

    # -- the rest -----------------------------------------------------------------------------------------------------

    def _qemu(self) -> QemuImg:
        return QemuImg(self._directory, max_bytes=self._max_bytes)

    def _refuse_used(self, token: Token) -> None:
        """Raise `RefusedError` if a machine writes to the image: QEMU locks it then, and looks at locks here."""
        self._qemu().info(_name(token))

    def _path(self, token: Token) -> bytes:
        return os.path.join(self._directory, _name(token))

    def _check_size(self, size: int) -> None:
        if not _LEAST_BYTES <= size <= self._max_bytes or size % _LEAST_BYTES:
            raise UsageError(
                f"a disk of {size} bytes cannot be had", hint=f"a multiple of 512, up to {self._max_bytes}"
            )

    def _chain(self, token: Token) -> list[Header]:
        """The headers of an image and of all its bases, each checked before QEMU reads any of them."""
        chain: list[Header] = []
        seen: set[Token] = set()
        at: Token | None = token
        while at is not None:
            path = self._path(at)
            if at in seen or len(chain) > _MOST_LAYERS:
                raise FormatError(f"{display(path)} stands on itself, or on too many others")
            seen.add(at)
            header = read_header(path)
            _refuse(header, path)
            if header.size > self._max_bytes:
                raise FormatError(f"{display(path)} is a disk of {header.size} bytes")
            chain.append(header)
            at = _checked_base(header, path)
        return chain

    def _ancestors(self, token: Token) -> list[Token]:
        return [base for header in self._chain(token) if (base := _base(header)) is not None]

    def _children(self, token: Token) -> list[Token]:
        """The images whose base it is, the damaged ones among them as far as they still say so."""
        return [other for other in self.images() if other != token and self._based_on(other) == token]

    def _based_on(self, token: Token) -> Token | None:
        try:
            return _base(read_header(self._path(token)))
        except (FormatError, NotFoundError):
            return None

    def _is_beyond_repair(self, token: Token) -> bool:
        try:
            header = read_header(self._path(token))
            _refuse(header, self._path(token))
            _checked_base(header, self._path(token))
        except FormatError:
            return True
        return False

    @contextmanager
    def _writing(self, token: Token) -> Generator[set[str]]:
        """Change an image that is no other's base; yields the names of its states."""
        with self._changing():
            self._chain(token)
            children = self._children(token)
            if children:
                raise _in_use(token, children)
            yield {state.name for state in self._qemu().info(_name(token)).snapshots}
            self._sync(token)

    @contextmanager
    def _making(self) -> Generator[tuple[Token, bytes]]:
        """A token, and the name of a file that becomes its image when the block ends, durably, and else is gone."""
        with self._changing():
            token = Token(self._random(_TOKEN_BYTES).hex())
            name = _name(token) + b".new"
            path = os.path.join(self._directory, name)
            try:
                yield token, name
                os.chmod(path, 0o600)
                _sync(path)
                os.rename(path, self._path(token))
                _sync(self._directory)
            except BaseException:
                if os.path.lexists(path):
                    os.unlink(path)
                raise

    @contextmanager
    def _changing(self) -> Generator[None]:
        """Hold the directory, without what others had begun in it when they were killed."""
        try:
            make_private(self._directory)
            lock = os.path.join(self._directory, b"lock")
            with exclusive(lock, timeout=self._timeout, clock=self._clock, what="the directory of disk images"):
                for name in os.listdir(self._directory):
                    if _UNFINISHED.match(name):
                        os.unlink(os.path.join(self._directory, name))
                yield
        except OSError as error:
            raise StorageError(f"disk images in {display(self._directory)}: {error.strerror or error}") from error

    def _sync(self, token: Token) -> None:
        if os.path.lexists(self._path(token)):
            _sync(self._path(token))

    def _unlink(self, token: Token) -> None:
        os.unlink(self._path(token))
        _sync(self._directory)


def _name(token: Token) -> bytes:
    name = token.encode("utf-8", "replace") + b".qcow2"
    if not _FILE.match(name):
        raise NotFoundError(f"there is no image {token[:80]!r}")
    return name


def _base(header: Header) -> Token | None:
    found = None if header.backing is None else _FILE.match(header.backing)
    return None if found is None else Token(found[1].decode())


def _checked_base(header: Header, path: bytes) -> Token | None:
    """The image that one is based on. Raises `FormatError` if that is anything but another one of its directory."""
    if header.backing is None:
        return None
    base = _base(header)
    if base is None or header.backing_format != b"qcow2":
        form = "" if header.backing_format is None else f" as {display(header.backing_format)}"
        raise FormatError(
            f"{display(path)} is based on {display(header.backing)!r}{form}, which is no image of its directory",
            hint="another program has written to it: do not use it",
        )
    return base


def _refuse(header: Header, path: bytes) -> None:
    """Raise `FormatError` for an image that is not for us to open."""
    reason = (
        "its content lies in another file"
        if header.external_data
        else "it is encrypted"
        if header.encrypted
        else "QEMU has found out that it is damaged"
        if header.corrupt
        else ""
    )
    if reason:
        raise FormatError(f"{display(path)} cannot be used: {reason}")


def _require(states: set[str], state: str) -> None:
    if state not in states or not _STATE.match(state):
        raise NotFoundError(f"there is no state {state[:80]!r} in the image")


def _in_use(token: Token, others: Sequence[Token]) -> RefusedError:
    return RefusedError(
        f"the image {token} is in use: {', '.join(others[:3])} {'stands' if len(others) == 1 else 'stand'} on it",
        hint="remove them, or put them on another base",
        code="in_use",
    )


def _size_of(path: bytes) -> int:
    """Of a regular file, rounded up to sectors: what a raw image is."""
    try:
        about = os.lstat(path)
    except OSError as error:
        raise NotFoundError(f"there is no image {display(path)}: {error.strerror}") from error
    if not stat.S_ISREG(about.st_mode):
        raise RefusedError(f"{display(path)} is no regular file")
    return -(-about.st_size // _LEAST_BYTES) * _LEAST_BYTES


def _sync(path: bytes) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
