"""The modules of a kernel to load, and their order, including dependencies.

Modules list their dependencies in the section ``.modinfo``: no depmod is run, and no list of ours must follow the
kernel's changes.
"""

from __future__ import annotations

import lzma
import os
import struct
from typing import TYPE_CHECKING, Final

from holdfast.model.errors import FormatError, UnsupportedError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.paths import display

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_SUFFIXES: Final = (b".ko", b".ko.xz", b".ko.zst", b".ko.gz")
_MOST_BYTES: Final = 64 << 20
"""No module of a distribution is anywhere near that large once it is unpacked."""


class Module(NamedTuple):
    """A module to load."""

    name: str
    """With underscores, as the kernel has it."""
    content: bytes
    """The ELF file, unpacked: what loads it in an initrd need not know how."""


def choose_modules(tree: bytes, needed: Iterable[str], wanted: Iterable[str] = ()) -> list[Module]:
    """The modules ``needed`` and ``wanted``, with all dependencies, in the order of loading.

    ``tree`` is a kernel's directory of modules (``/lib/modules/RELEASE``). Built-in modules are left out, and so are
    those of ``wanted`` that this kernel does not have.

    Raises `UnsupportedError` if the kernel lacks one of ``needed``, and `FormatError` for a damaged module.
    """
    return _Choice(tree).load(needed, wanted)


class _Choice:
    """Modules of one kernel, in the order in which they were asked for."""

    def __init__(self, tree: bytes) -> None:
        self._paths = dict(_modules_below(tree))
        self._built_in = _built_in(tree)
        self._visited: set[str] = set()
        self._chosen: list[Module] = []
        self._aliases: dict[str, str] | None = None

    def load(self, needed: Iterable[str], wanted: Iterable[str]) -> list[Module]:
        for name in needed:
            if not self._visit(normal(name)):
                raise UnsupportedError(
                    f"this kernel has no module {name}, which a machine needs", code="kernel_lacks_module"
                )
        for name in wanted:
            self._visit(normal(name))
        return self._chosen

    def _visit(self, name: str) -> bool:
        """Choose a module with its dependencies; False if there is none of this name."""
        if name in self._visited or name in self._built_in:
            return True
        path = self._paths.get(name)
        if path is None:
            return False
        # Before its dependencies, which ends cycles.
        self._visited.add(name)
        content = read_module(path)
        facts = module_facts(content, path)
        for one in facts.depends:
            if not self._visit(one):
                raise UnsupportedError(
                    f"the kernel's module {name} depends on {one}, which is not there", code="kernel_lacks_module"
                )
        for one in facts.before:
            if not self._visit(one):
                self._visit_alias(one)
        self._chosen.append(Module(name, content))
        return True

    def _visit_alias(self, name: str) -> None:
        """Choose the provider of a feature, such as a checksum, that a module requests by an alias.

        The generic one of several: the others require processor features.
        """
        if self._aliases is None:
            self._aliases = {}
            for one in sorted(self._paths, key=lambda one: (not one.endswith("_generic"), one)):
                for alias in module_facts(read_module(self._paths[one]), self._paths[one]).aliases:
                    self._aliases.setdefault(alias, one)
        if (found := self._aliases.get(name)) is not None:
            self._visit(found)


def normal(name: str) -> str:
    """A module's name as the kernel has it."""
    return name.replace("-", "_")


def _modules_below(tree: bytes) -> Iterator[tuple[str, bytes]]:
    for directory, _, names in os.walk(tree):
        for name in names:
            suffix = next((one for one in _SUFFIXES if name.endswith(one)), None)
            if suffix is not None:
                yield normal(os.fsdecode(name.removesuffix(suffix))), os.path.join(directory, name)


def _built_in(tree: bytes) -> frozenset[str]:
    try:
        with open(os.path.join(tree, b"modules.builtin"), encoding="utf-8", errors="surrogateescape") as lines:
            return frozenset(normal(os.path.basename(line.strip()).removesuffix(".ko")) for line in lines)
    except FileNotFoundError:
        return frozenset()


def read_module(path: bytes) -> bytes:
    """The ELF file that ``path`` holds, compressed as its name says, or not."""
    with open(path, "rb") as stream:
        data = stream.read(_MOST_BYTES + 1)
    try:
        if path.endswith(b".xz"):
            data = lzma.LZMADecompressor().decompress(data, _MOST_BYTES + 1)
        elif path.endswith(b".zst"):
            import zstandard

            with zstandard.ZstdDecompressor().stream_reader(data) as stream:
                data = stream.read(_MOST_BYTES + 1)
        elif path.endswith(b".gz"):
            import zlib

            data = zlib.decompressobj(31).decompress(data, _MOST_BYTES + 1)
    except Exception as error:  # each library has its own
        raise FormatError(f"{display(path)}: it cannot be unpacked: {error}") from error
    if len(data) > _MOST_BYTES:
        raise FormatError(f"{display(path)}: more than {_MOST_BYTES} bytes are no kernel module")
    return data


class ModuleFacts(NamedTuple):
    """A module's own facts. Names are `normal`, except aliases."""

    depends: tuple[str, ...]
    """Modules that must be loaded before it."""
    before: tuple[str, ...]
    """Modules, or their aliases, that must be loaded before it if they exist."""
    aliases: tuple[str, ...]


def module_facts(content: bytes, path: bytes = b"a module") -> ModuleFacts:
    """The facts in the section ``.modinfo`` of the ELF file ``content``. Raises `FormatError` with ``path``.

    Format: NUL-terminated ``NAME=VALUE`` pairs; some names occur several times.
    """
    depends: list[str] = []
    before: list[str] = []
    aliases: list[str] = []
    for field in elf_section(content, b".modinfo", path).split(b"\0"):
        name, _, value = field.decode("utf-8", "replace").partition("=")
        if name == "depends":
            depends += [normal(one) for one in value.split(",") if one]
        elif name == "softdep":
            before += _softdep_before(value)
        elif name == "alias":
            aliases.append(normal(value))
    return ModuleFacts(tuple(depends), tuple(before), tuple(aliases))


def _softdep_before(value: str) -> Iterator[str]:
    """``pre: a b post: c`` → a, b."""
    before = False
    for word in value.split():
        if word in ("pre:", "post:"):
            before = word == "pre:"
        elif before:
            yield normal(word)


# -- ELF --------------------------------------------------------------------------------------------------------------

_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")


def elf_section(content: bytes, wanted: bytes, path: bytes) -> bytes:
    """The content of a section of a 64-bit little-endian ELF file; empty without one. Raises `FormatError`."""
    try:
        header = _HEADER.unpack_from(content)
        if header[0][:6] != b"\x7fELF\x02\x01":
            raise FormatError(f"{display(path)}: it is no 64-bit little-endian ELF file")
        numbers: tuple[int, ...] = header[1:]
        offset, size, count, names_at = numbers[5], numbers[10], numbers[11], numbers[12]
        if size < _SECTION.size or names_at >= count:
            raise FormatError(f"{display(path)}: its section headers are damaged")
        sections: list[tuple[int, ...]] = [
            _SECTION.unpack_from(content, offset + number * size) for number in range(count)
        ]
    except (struct.error, OverflowError):
        raise FormatError(f"{display(path)}: it is cut short") from None
    names = _cut(content, sections[names_at], path)
    for section in sections:
        start = section[0]
        if names[start : start + len(wanted) + 1] == wanted + b"\0":
            return _cut(content, section, path)
    return b""


def _cut(content: bytes, section: tuple[int, ...], path: bytes) -> bytes:
    offset, size = section[4], section[5]
    if offset + size > len(content):
        raise FormatError(f"{display(path)}: a section ends behind its end")
    return content[offset : offset + size]
