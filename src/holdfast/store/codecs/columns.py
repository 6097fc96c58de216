"""Columns that pages and changesets are made of: paths, hashes and modes of many entries, each kind together.

Values of one kind lie side by side, so that they are checked and turned into objects in bulk, and compress well.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import cache, partial
from itertools import compress, groupby
from operator import lt
from struct import Struct

from holdfast.model.entries import Entry, is_entry_mode
from holdfast.model.errors import EscapeError, FormatError
from holdfast.model.fast_typing import TYPE_CHECKING, cast
from holdfast.model.ids import HASH_BYTES, Hash
from holdfast.model.paths import MAX_NAME_BYTES, check_path, display

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

MAX_SIZE = (1 << 55) - 1
"""The largest size, or sum of sizes, in a column: 256 of them, a page, stay below 2⁶³."""

_BAD_PARTS = (b"\0.\0", b"\0..\0", b"\0.git\0", b"\0.holdfast\0")

# A NamedTuple's own constructor is a Python function; this one runs in C and takes less than half the time.
_new_entry = cast(
    "Callable[[tuple[bytes, int, int]], Entry]",
    partial(tuple.__new__, Entry),  # pyright: ignore[reportUnknownMemberType]
)


def check_paths(paths: Sequence[bytes]) -> None:
    """Raise `EscapeError` for a path that `check_path` refuses, `FormatError` unless all are ascending and distinct."""
    if not paths:
        return
    joined = b"\0".join(paths)
    parts = b"\0" + joined.replace(b"/", b"\0") + b"\0"
    if (
        joined.count(b"\0") != len(paths) - 1
        or b"\0\0" in parts
        or (b"\0." in parts and any(bad in parts for bad in _BAD_PARTS))
        or len(max(paths, key=len)) > MAX_NAME_BYTES
    ):
        for path in paths:
            check_path(path)
    if not all(map(lt, paths, paths[1:])):
        raise FormatError("paths are not in ascending order, or one is there twice")


def check_no_file_is_directory(paths: Sequence[bytes]) -> None:
    """Raise `FormatError` if one of ``paths`` (ascending) is a directory of another."""
    # Everything between a path and what lies below it begins with that path, so its very next neighbour does too.
    for path in compress(paths, map(bytes.startswith, paths[1:], paths)):
        check_nothing_below(paths, path)


def check_nothing_below(paths: Sequence[bytes], path: bytes) -> None:
    """Raise `FormatError` if one of ``paths`` (ascending) lies below ``path``."""
    directory = path + b"/"
    at = bisect_left(paths, directory)
    if at < len(paths) and paths[at].startswith(directory):
        raise FormatError(f"{display(path)!r} is both a file and the directory of {display(paths[at])!r}")


def join_paths(paths: Sequence[bytes]) -> tuple[bytes, bytes]:
    """The longest common prefix of ``paths`` (ascending), and what remains of each, joined by NUL."""
    if not paths:
        return b"", b""
    first, last = paths[0], paths[-1]
    length = _common_length(first, last)
    if not length:
        return b"", b"\0".join(paths)
    return first[:length], b"\0".join([path[length:] for path in paths])


def split_paths(prefix: bytes, rest: bytes, count: int) -> list[bytes]:
    """The inverse of `join_paths` for ``count`` paths; raises `FormatError` on any other number."""
    if not count:
        if prefix or rest:
            raise FormatError("field 'paths': it holds paths, and there are no hashes")
        return []
    if rest.count(b"\0") != count - 1:
        raise FormatError(f"field 'paths': it does not hold {count} paths, one for each hash")
    if not prefix:
        return rest.split(b"\0")
    return (prefix + rest.replace(b"\0", b"\0" + prefix)).split(b"\0")


def check_prefix(paths: Sequence[bytes], prefix: bytes) -> None:
    """Raise `FormatError` unless ``prefix`` is what `join_paths` gives, so that one list of paths has one encoding."""
    if paths and _common_length(paths[0], paths[-1]) != len(prefix):
        raise FormatError("field 'prefix': it is not the longest that the paths share")


def _common_length(first: bytes, last: bytes) -> int:
    shortest = min(len(first), len(last))
    if first[:shortest] == last[:shortest]:
        return shortest
    low, high = 0, shortest - 1
    while low < high:
        middle = (low + high + 1) // 2
        if first[:middle] == last[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def split_hashes(hashes: bytes) -> tuple[Hash, ...]:
    """The hashes that are concatenated in ``hashes`` (a multiple of 16 bytes)."""
    return cast("tuple[Hash, ...]", _hash_struct(len(hashes) // HASH_BYTES).unpack(hashes))


@cache
def _pattern(count: int) -> Struct:
    return Struct(f"{HASH_BYTES}s" * count)


def _hash_struct(count: int) -> Struct:
    # Pages have few lengths, and each is used again and again; anything longer is made for the one call.
    return _pattern(count) if count <= 256 else Struct(f"{HASH_BYTES}s" * count)


def make_entries(hashes: bytes, sizes: Iterable[int], modes: Iterable[int]) -> list[Entry]:
    """The entries whose columns these are (of equal length)."""
    return list(map(_new_entry, zip(split_hashes(hashes), sizes, modes, strict=True)))


def pack_modes(modes: Sequence[int]) -> list[int]:
    """Run lengths of ``modes``: a mode, how often it repeats, the next mode, …."""
    if modes and modes.count(modes[0]) == len(modes):
        return [modes[0], len(modes)]
    runs: list[int] = []
    for mode, group in groupby(modes):
        runs += (mode, sum(1 for _ in group))
    return runs


def check_modes(runs: Sequence[int], count: int) -> None:
    """Raise `FormatError` unless ``runs`` is what `pack_modes` gives for ``count`` modes that an entry may carry."""
    if len(runs) == 2 and runs[1] == count and is_entry_mode(runs[0]) and count:
        return
    modes, lengths = runs[::2], runs[1::2]
    if len(runs) % 2 or sum(lengths) != count or (lengths and min(lengths) < 1):
        raise FormatError("field 'modes': the run lengths do not match the number of entries")
    for at, mode in enumerate(modes):
        if not is_entry_mode(mode):
            raise FormatError(f"field 'modes': {mode:#o} is not the mode of a file or a symbolic link")
        if at and modes[at - 1] == mode:
            raise FormatError("field 'modes': one mode in two runs side by side")


def unpack_modes(runs: Sequence[int]) -> list[int]:
    """The inverse of `pack_modes`, for runs that `check_modes` has passed."""
    if len(runs) == 2:
        return [runs[0]] * runs[1]
    modes: list[int] = []
    for mode, length in zip(runs[::2], runs[1::2], strict=True):
        modes += [mode] * length
    return modes


def check_sizes(sizes: Sequence[int], count: int, field: str) -> None:
    """Raise `FormatError` unless there are ``count`` sizes between 0 and `MAX_SIZE`."""
    if len(sizes) != count:
        raise FormatError(f"field '{field}': {len(sizes)} values for {count} hashes")
    if sizes and (min(sizes) < 0 or max(sizes) > MAX_SIZE):
        raise FormatError(f"field '{field}': a value is negative or over {MAX_SIZE}")


def check_hashes(hashes: bytes) -> int:
    """How many hashes are in ``hashes``; raises `FormatError` if that is no whole number."""
    count, rest = divmod(len(hashes), HASH_BYTES)
    if rest:
        raise FormatError(f"field 'hashes': {len(hashes)} bytes are not a multiple of {HASH_BYTES}")
    return count


def check_foreign_paths(paths: Sequence[bytes]) -> None:
    """`check_paths` for paths that came out of a decoder: everything that is wrong with them is a `FormatError`."""
    try:
        check_paths(paths)
    except EscapeError as error:
        raise FormatError(f"field 'paths': {error.message}") from None
    except FormatError as error:
        raise FormatError(f"field 'paths': {error.message}") from None
