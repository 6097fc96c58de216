"""Making the files and links of a batch, under the names that they have until they are in place.

What comes with its content is made at once. What has a `Supply` to be fetched from waits until there are many, which
two processes make where that pays (see `holdfast.files.write._parallel_write`).
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
    from holdfast.files.write._parallel_write import SecondWriter
    from holdfast.files.write.displaced_file import Taken
    from holdfast.files.write.ownership import Owner
    from holdfast.files.write.rooted_access import Root
    from holdfast.model.content import Content, Located, Supply
    from holdfast.model.entries import Change, Entry

TREE_ERRORS = (EscapeError, NotFoundError, RefusedError, StorageError, OSError)
"""What one path may fail with while the others go on; a damaged blob is not among them."""

MIN_FILES = 512
"""How many files it takes for a second process: to make one takes as long as to write some fifty files."""

_PORTION_FILES = 64
_PORTION_BYTES = 1 << 20


TreeError = HoldfastError | OSError


class ContentError(Exception):
    """Carries an error of the one who gives the content past those who handle errors of the tree."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Order(NamedTuple):
    """A file or link that is to be made."""

    change: Change
    after: Entry
    directory: bytes
    """Where it is to be made: in the directory of the path, or in a temporary one (``staged``)."""
    name: bytes
    staged: bool
    taken: Taken | None
    """What it is to replace."""


class Creator:
    """Makes files and links below a `Root`. For one thread; nothing that it made is durable before `content` is."""

    def __init__(self, root: Root, owner: Owner | None) -> None:
        """What is made is given to ``owner``."""
        self._root = root
        self._owner = owner
        self.content = Durability()
        """Of what was made."""
        self.devices: set[int] = set()
        """Where it lies."""

    def create(self, directory: bytes, name: bytes, content: Content, entry: Entry) -> Signature:
        """Make ``name`` in the directory; what it looks like. Raises as `replace.write_file`, and `ContentError` for
        what the content's iterator raises; then it was not made.
        """
        if isinstance(content, SharedFile):
            content.stored = _guarded(content.stored)
        elif not isinstance(content, bytes):
            content = _guarded(content)
        dir_fd = self._root.directory(directory)
        if entry.is_symlink:
            info = atomic_replacement.write_link(dir_fd, name, content, entry, self._owner)
            self.content.add_directory(dir_fd)
        else:
            fd, info = atomic_replacement.write_file(dir_fd, name, content, entry, self._owner)
            self.content.add(fd, info.st_dev)
        self.devices.add(info.st_dev)
        return signature_of(info)

    def create_all(
        self, orders: Sequence[Order], supply: Supply, heard: Callable[[int], None]
    ) -> Generator[tuple[Order, Signature | TreeError]]:
        """Make all of them, in any order: each with what it looks like, or with the error of the tree that it met.

        ``heard`` is told how many there are so far. Raises what the supply raises; then, or if the iterator is closed
        before its end, what it did not give out is not there.
        """
        if len(orders) < MIN_FILES or not forked_worker.is_worthwhile():
            yield from self._fetched(orders, supply, heard, 0)
            return
        located = supply.locate([order.change for order in orders])
        device = self._cover_device()  # the second process cannot add the files that it makes to `content`
        second = self._start_second(orders, located)
        if second is None:
            yield from self._fetched(orders, supply, heard, 0)
            return
        left_to_second = set(range(len(orders)))
        try:
            done = 0
            while (portion := second.take_portion()) is not None:
                left_to_second.difference_update(portion)
                for made in self._here([orders[number] for number in portion], located, supply):
                    done += 1
                    yield made
                heard(done + second.files_made)
            second.wait()
            again: list[Order] = []
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
        yield from self._fetched(again, supply, heard, len(orders) - len(again))

    def _cover_device(self) -> int:
        """Have the whole device of the root synced with `content`; its number."""
        device = os.fstat(self._root.fd).st_dev
        self.content.add_all(os.dup(self._root.fd), device)
        self.devices.add(device)
        return device

    def _start_second(self, orders: Sequence[Order], located: Located) -> SecondWriter | None:
        own: list[Creator] = []

        def make_files(portion: range) -> Iterator[tuple[int, Signature, int]]:
            if not own:
                own.append(Creator(self._root, self._owner))
                own[0]._cover_device()  # noqa: SLF001 - so it only closes its files; the first process syncs them
            contents = located([orders[number].change for number in portion])
            for number in portion:
                _, after, directory, name, _, _ = orders[number]
                content = contents.get(after.hash)
                if content is not None:
                    own[0].devices.clear()
                    seen = own[0].create(directory, name, content, after)
                    yield number, seen, own[0].devices.pop()

        from holdfast.files.write import _parallel_write as parallel_write

        return parallel_write.start(_portions(orders), make_files)

    def _here(
        self, orders: Sequence[Order], located: Located, supply: Supply
    ) -> Iterator[tuple[Order, Signature | TreeError]]:
        """As `_fetched`, for what was located."""
        contents = located([order.change for order in orders])
        rest: list[Order] = []
        for order in orders:
            content = contents.get(order.after.hash)
            if content is None:
                rest.append(order)
            else:
                yield order, self._attempt(order, content)
        yield from self._fetched(rest, supply, _nobody, 0)

    def _fetched(
        self, orders: Sequence[Order], supply: Supply, heard: Callable[[int], None], before: int
    ) -> Iterator[tuple[Order, Signature | TreeError]]:
        contents = supply.fetch([order.change for order in orders])
        for done, (order, content) in enumerate(zip(orders, contents, strict=True), before):
            heard(done)
            try:
                yield order, self._attempt(order, content)
            finally:
                if close := getattr(content, "close", None):
                    close()

    def _attempt(self, order: Order, content: Content) -> Signature | TreeError:
        try:
            return self.create(order.directory, order.name, content, order.after)
        except TREE_ERRORS as error:
            return error

    def _remove(self, order: Order) -> None:
        """Remove what the second process may have begun to make."""
        try:
            os.unlink(order.name, dir_fd=self._root.directory(order.directory))
        except TREE_ERRORS:
            return  # not there; or what is will be in the way of making it, and be reported


def _portions(orders: Sequence[Order]) -> list[range]:
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


def _nobody(done: int) -> None:
    """Hears of progress that is counted elsewhere."""
    del done
