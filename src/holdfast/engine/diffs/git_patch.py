"""The text of one file's difference, byte for byte as ``git diff`` writes it and ``git apply`` reads it.

Source of the format: git-diff(1) "Generating patch text with -p", ``quote.c`` (names), ``diff.c`` and ``base85.c``
(binary patches). Nothing here reads content; all of it comes as bytes.
"""

from __future__ import annotations

import hashlib
import zlib
from base64 import b85encode

from holdfast.engine.diffs.line_diff import Region, changed_regions
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence

SYMLINK_MODE = b"120000"
SNIFFED_BYTES = 8192
"""A NUL within this many first bytes makes content binary."""

_ABBREVIATION = 10
_NO_OBJECT = b"0" * 40
_BINARY_LINE = 52
_ESCAPES = {7: b"\\a", 8: b"\\b", 9: b"\\t", 10: b"\\n", 11: b"\\v", 12: b"\\f", 13: b"\\r", 34: b'\\"', 92: b"\\\\"}
_QUOTED = {
    byte: _ESCAPES.get(byte, b"\\%03o" % byte)
    for byte in range(256)
    if byte < 0x20 or byte >= 0x7F or byte in (0x22, 0x5C)
}


class Side(NamedTuple):
    """One side of a difference: the file at a path."""

    path: bytes
    mode: int
    """As in an `Entry`: type and permissions."""
    data: bytes


def quote(name: bytes) -> bytes:
    """``name`` as Git writes it with ``core.quotePath``: in double quotes with C escapes if any byte needs one."""
    # Git writes " /" unquoted, too; in a header without further lines it then cannot find the end of the name.
    if b" /" not in name and not any(byte in _QUOTED for byte in name):
        return name
    return b'"' + b"".join(_QUOTED.get(byte) or bytes((byte,)) for byte in name) + b'"'


def is_binary(data: bytes) -> bool:
    """True if there is a NUL in the first 8 KiB."""
    return b"\0" in data[:SNIFFED_BYTES]


def git_mode(mode: int, *, exact: bool = False) -> bytes:
    """The mode in octal as Git knows it, 100644, 100755 or 120000; with ``exact`` all nine permission bits."""
    if mode & 0o170000 == 0o120000:
        return SYMLINK_MODE
    return b"%06o" % (mode if exact else 0o100755 if mode & 0o100 else 0o100644)


def split_lines(data: bytes) -> list[bytes]:
    """The lines of ``data`` with their line feeds; the last may lack one. A carriage return is an ordinary byte."""
    lines = data.split(b"\n")
    last = lines.pop()
    lines = [line + b"\n" for line in lines]
    if last:
        lines.append(last)
    return lines


def count_lines(before: bytes, after: bytes) -> tuple[int, int]:
    """How many lines a patch from ``before`` to ``after`` adds and removes."""
    regions = changed_regions(split_lines(before), split_lines(after))
    return sum(r.after_end - r.after_start for r in regions), sum(r.before_end - r.before_start for r in regions)


class Hunk(NamedTuple):
    """A hunk of a unified diff."""

    text: bytes
    regions: Sequence[Region]
    """The changes in it, in order."""


def hunks(before: bytes, after: bytes, context: int = 3) -> Iterator[bytes]:
    """The hunks of a unified diff with ``context`` lines around each change, one by one; none without differences."""
    return (hunk.text for hunk in split_hunks(before, after, context))


def split_hunks(before: bytes, after: bytes, context: int = 3) -> Iterator[Hunk]:
    """The same, each with its regions, as `apply_hunks` takes them."""
    one, other = split_lines(before), split_lines(after)
    group: list[Region] = []
    for region in changed_regions(one, other):
        if group and region.before_start - group[-1].before_end > 2 * context:
            yield Hunk(_hunk(one, other, group, context), group)
            group = []
        group.append(region)
    if group:
        yield Hunk(_hunk(one, other, group, context), group)


def apply_hunks(before: bytes, after: bytes, chosen: Iterable[Hunk]) -> bytes:
    """``before`` with those of the hunks that lead to ``after``, which are in order."""
    one, other = split_lines(before), split_lines(after)
    out: list[bytes] = []
    at = 0
    for region in (region for hunk in chosen for region in hunk.regions):
        out += one[at : region.before_start]
        out += other[region.after_start : region.after_end]
        at = region.before_end
    return b"".join([*out, *one[at:]])


def _hunk(one: list[bytes], other: list[bytes], group: list[Region], context: int) -> bytes:
    lead = min(context, group[0].before_start)
    trail = min(context, len(one) - group[-1].before_end)
    start, after_start = group[0].before_start - lead, group[0].after_start - lead
    end, after_end = group[-1].before_end + trail, group[-1].after_end + trail
    out = [b"@@ -%s +%s @@\n" % (_span(start, end), _span(after_start, after_end))]
    at = start
    for region in group:
        out += [b" " + line for line in one[at : region.before_start]]
        out += [b"-" + line for line in one[region.before_start : region.before_end]]
        _end_line(out)
        out += [b"+" + line for line in other[region.after_start : region.after_end]]
        _end_line(out)
        at = region.before_end
    out += [b" " + line for line in one[at:end]]
    _end_line(out)
    return b"".join(out)


def _end_line(out: list[bytes]) -> None:
    if not out[-1].endswith(b"\n"):
        out[-1] += b"\n\\ No newline at end of file\n"


def _span(start: int, end: int) -> bytes:
    if end - start == 1:
        return b"%d" % (start + 1)
    # An empty span names the line before it.
    return b"%d,%d" % (start + (end > start), end - start)


def file_patch(
    before: Side | None,
    after: Side | None,
    *,
    similarity: int = 0,
    context: int = 3,
    binary: bool = False,
    opaque: bool = False,
) -> Iterator[bytes]:
    """The patch that leads from ``before`` to ``after`` (None: no such file), in pieces; not both may be None.

    Two sides with different paths are a rename with that ``similarity`` in percent. Both sides have the same type;
    write a change of type as a removal and an addition. Binary content becomes one line, ``Binary files … differ``,
    that no program can apply, or with ``binary`` a binary patch in both directions. ``opaque`` content counts as binary
    without examination, and its ``data`` is only used if ``binary`` is set.

    Modes have Git's values. For a change that Git ignores, such as 0600 to 0644, ``old mode`` and ``new mode`` lines
    have all permission bits: ``git apply`` accepts them and does nothing.
    """
    source, target = before or after, after or before
    if source is None or target is None:
        raise ValueError("a patch needs at least one side")
    old_name, new_name = quote(b"a/" + source.path), quote(b"b/" + target.path)
    yield b"diff --git %s %s\n" % (old_name, new_name)
    same_mode = yield from _mode_lines(before, after)
    if before is not None and after is not None and before.path != after.path:
        yield b"similarity index %d%%\nrename from %s\nrename to %s\n" % (
            similarity,
            quote(before.path),
            quote(after.path),
        )
    if opaque and not binary:
        yield _binary_line(before, after, old_name, new_name)
        return
    old_data, new_data = before.data if before else b"", after.data if after else b""
    if before is not None and after is not None and old_data == new_data:
        return
    is_opaque = opaque or is_binary(old_data) or is_binary(new_data)
    width = 40 if is_opaque and binary else _ABBREVIATION
    ids = (_object_id(before)[:width], _object_id(after)[:width])
    yield b"index %s..%s%s\n" % (*ids, b" " + same_mode if same_mode else b"")
    if is_opaque and binary:
        yield b"GIT binary patch\n"
        yield from _binary_literal(new_data)
        yield from _binary_literal(old_data)
    elif is_opaque:
        yield _binary_line(before, after, old_name, new_name)
    elif old_data or new_data:
        yield b"--- %s\n+++ %s\n" % (_text_name(before, old_name), _text_name(after, new_name))
        yield from hunks(old_data, new_data, context)


def _mode_lines(before: Side | None, after: Side | None) -> Generator[bytes, None, bytes]:
    """The lines about modes; returns the mode that both sides share, if they do."""
    if before is None or after is None:
        if after is not None:
            yield b"new file mode %s\n" % git_mode(after.mode)
        if before is not None:
            yield b"deleted file mode %s\n" % git_mode(before.mode)
        return b""
    if before.mode == after.mode:
        return git_mode(before.mode)
    exact = git_mode(before.mode) == git_mode(after.mode)
    yield b"old mode %s\nnew mode %s\n" % (git_mode(before.mode, exact=exact), git_mode(after.mode, exact=exact))
    return b""


def _text_name(side: Side | None, name: bytes) -> bytes:
    if side is None:
        return b"/dev/null"
    # A tab marks the end of a name with a space in it, for programs that would read a date after the space.
    return name + b"\t" if b" " in name else name


def _binary_line(before: Side | None, after: Side | None, old_name: bytes, new_name: bytes) -> bytes:
    return b"Binary files %s and %s differ\n" % (
        old_name if before else b"/dev/null",
        new_name if after else b"/dev/null",
    )


def _object_id(side: Side | None) -> bytes:
    """The name that Git gives this content: SHA-1 over ``blob``, the size and the content."""
    if side is None:
        return _NO_OBJECT
    digest = hashlib.sha1(b"blob %d\0" % len(side.data), usedforsecurity=False)
    digest.update(side.data)
    return digest.hexdigest().encode()


def _binary_literal(data: bytes) -> Iterator[bytes]:
    """One direction of a binary patch: the whole result, deflated, 52 bytes a line in base 85 after its length."""
    yield b"literal %d\n" % len(data)
    packed = zlib.compress(data)
    lines: list[bytes] = []
    for at in range(0, len(packed), _BINARY_LINE):
        piece = packed[at : at + _BINARY_LINE]
        length = len(piece)
        lines.append(bytes((length + (64 if length <= 26 else 70),)) + b85encode(piece, pad=True) + b"\n")
    lines.append(b"\n")
    yield b"".join(lines)
