"""Makes the files and links of a batch, under the temporary names that they have until they are in place.

A file whose content is given is made at once. Files whose content comes from a `Supply` wait until there are many: two
processes then make them, where that saves time (see `holdfast.files.write._parallel_write`).
"""

from __future__ import annotations

import os

from holdfast.files.index.stat_index import signature_of
from holdfast.files.linux import forked_worker
from holdfast.files.linux.reflink import SharedFile
from holdfast.files.write import atomic_replacement
from holdfast.files.write.atomic_replacement import Durability
from holdfast.model.content import SMALL_BLOB_BYTES
from holdfast.model.errors import EscapeError, HoldfastError, NotFoundError, RefusedError, StorageError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from holdfast.files.index.stat_index import Signature
    from holdfast.files.linux.metadata import Xattrs
    from holdfast.files.write._parallel_write import SecondWriter
    from holdfast.files.write.displaced_file import DisplacedFile
    from holdfast.files.write.ownership import Owner
    from holdfast.files.write.rooted_access import Root
    from holdfast.model.content import Content, Located, Supply
    from holdfast.model.entries import Change, Entry

TREE_ERRORS = (EscapeError, NotFoundError, RefusedError, StorageError, OSError)
"""Errors of one path, after which the others go on; without that of a damaged blob."""

MIN_FILES = 512
"""How many files it takes for a second process: to make one takes as long as to write some fifty files."""

_PORTION_FILES = 64
_PORTION_BYTES = 1 << 20


TreeError = HoldfastError | OSError


class ContentError(Exception):
    """Wraps an error of the content's source, so that no handler of the tree's errors catches it."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


class FileOrder(NamedTuple):
    """A file or link to be made."""

    change: Change
    after: Entry
    directory: bytes
    """The directory to make it in: that of the path, or a temporary one (``staged``)."""
    name: bytes
    staged: bool
    taken: DisplacedFile | None
    """The file that it replaces."""
    xattrs: Xattrs
    """The extended attributes of that file, which it gets too."""
    kept: Owner | None = None
    """The owner of that file, who owns it too."""


class FileCreator:
    """Makes files and links below a `Root`. For one thread; nothing that it made is durable before `content` is."""

    def __init__(self, root: Root, owner: Owner | None) -> None:
        """Created files are given to ``owner``."""
        self._root = root
        self._owner = owner
        self.content = Durability()
        """Syncs the created files."""
        self.devices: set[int] = set()
        """The devices that it lies on."""

    def create(self, order: FileOrder, content: Content) -> Signature:
        """Make the ordered file; returns its signature. Raises as `atomic_replacement.write_file`, and `ContentError`
        for errors of the content's iterator; then nothing is made.
        """
        _, entry, directory, name, _, _, xattrs, kept = order
        if isinstance(content, SharedFile):
            content.stored = _guarded(content.stored)
        elif not isinstance(content, bytes):
            content = _guarded(content)
        dir_fd = self._root.directory(directory)
        if entry.is_symlink:
            info = atomic_replacement.write_link(dir_fd, name, content, entry, self._owner, kept)
            self.content.add_directory(dir_fd)
        else:
            fd, info = atomic_replacement.write_file(dir_fd, name, content, entry, self._owner, xattrs, kept)
            self.content.add(fd, info.st_dev)
        self.devices.add(info.st_dev)
        return signature_of(info)

    def create_all(
        self, orders: Sequence[FileOrder], supply: Supply, report: Callable[[int], None]
    ) -> Generator[tuple[FileOrder, Signature | TreeError]]:
        """Make all of them, in any order. Yields each with its signature, or with the tree's error for it.

        ``report`` is called with the number made so far. Raises the errors of the supply. Then, or if the iterator is
        closed before its end, only yielded files exist.
        """
        if len(orders) < MIN_FILES or not forked_worker.is_worthwhile():
            yield from self._fetched(orders, supply, report, 0)
            return
        located = supply.locate([order.change for order in orders])
        device = self._cover_device()  # the second process cannot add the files that it makes to `content`
        second = self._start_second(orders, located)
        if second is None:
            yield from self._fetched(orders, supply, report, 0)
            return
        left_to_second = set(range(len(orders)))
        try:
            done = 0
            while (portion := second.take_portion()) is not None:
                left_to_second.difference_update(portion)
                for made in self._here([orders[number] for number in portion], located, supply):
                    done += 1
                    yield made
                report(done + second.files_made)
            second.wait()
            again: list[FileOrder] = []
            for number in sorted(left_to_second):
                order = orders[number]
                signature = second.signature_of(number, device)
                if signature is None:
                    self._remove(order)
                    again.append(order)
                else:
                    left_to_second.remove(number)
                    yield order, signature
            left_to_second.clear()
        finally:
            second.end()
            for number in left_to_second:
                self._remove(orders[number])
        yield from self._fetched(again, supply, report, len(orders) - len(again))

    def _cover_device(self) -> int:
        """Have `content` sync the whole device of the root; returns its number."""
        device = os.fstat(self._root.fd).st_dev
        self.content.add_all(os.dup(self._root.fd), device)
        self.devices.add(device)
        return device

    def _start_second(self, orders: Sequence[FileOrder], located: Located) -> SecondWriter | None:
        own: list[FileCreator] = []

        def make_files(portion: range) -> Iterator[tuple[int, Signature, int]]:
            if not own:
                own.append(FileCreator(self._root, self._owner))
                own[0]._cover_device()  # noqa: SLF001 - so it only closes its files; the first process syncs them
            contents = located([orders[number].change for number in portion])
            for number in portion:
                content = contents.get(orders[number].after.hash)
                if content is not None:
                    own[0].devices.clear()
                    seen = own[0].create(orders[number], content)
                    yield number, seen, own[0].devices.pop()

        from holdfast.files.write import _parallel_write as parallel_write

        return parallel_write.start(_portions(orders), make_files)

    def _here(
        self, orders: Sequence[FileOrder], located: Located, supply: Supply
    ) -> Iterator[tuple[FileOrder, Signature | TreeError]]:
        """As `_fetched`, from the located contents; others are fetched."""
        contents = located([order.change for order in orders])
        rest: list[FileOrder] = []
        for order in orders:
            content = contents.get(order.after.hash)
            if content is None:
                rest.append(order)
            else:
                yield order, self._attempt(order, content)
        yield from self._fetched(rest, supply, _ignore, 0)

    def _fetched(
        self, orders: Sequence[FileOrder], supply: Supply, report: Callable[[int], None], before: int
    ) -> Iterator[tuple[FileOrder, Signature | TreeError]]:
        contents = supply.fetch([order.change for order in orders])
        for done, (order, content) in enumerate(zip(orders, contents, strict=True), before):
            report(done)
            try:
                yield order, self._attempt(order, content)
            finally:
                if close := getattr(content, "close", None):
                    close()

    def _attempt(self, order: FileOrder, content: Content) -> Signature | TreeError:
        try:
            return self.create(order, content)
        except TREE_ERRORS as error:
            return error

    def _remove(self, order: FileOrder) -> None:
        """Remove what the second process may have begun to make."""
        try:
            os.unlink(order.name, dir_fd=self._root.directory(order.directory))
        except TREE_ERRORS:
            return  # it is missing; or it stays, and is reported as an obstacle when the file is made again


def _portions(orders: Sequence[FileOrder]) -> list[range]:
    found: list[range] = []
    start = weight = 0
    for number, order in enumerate(orders):
        weight += min(order.after.size, SMALL_BLOB_BYTES)
        if weight >= _PORTION_BYTES or number - start >= _PORTION_FILES - 1:
            found.append(range(start, number + 1))
            start, weight = number + 1, 0
    if start < len(orders):
        found.append(range(start, len(orders)))
    return found


def _guarded(content: Iterator[bytes]) -> Iterator[bytes]:
    try:
        yield from content
    except Exception as error:
        raise ContentError(error) from error


def _ignore(done: int) -> None:
    """Takes the progress that the caller counts itself."""
    del done
