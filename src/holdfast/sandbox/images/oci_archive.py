"""Converts an archive of a container's image to one root file system: from ``docker save``, or in OCI's layout.

Everything in it is hostile: every name, length and number is checked, no path in it is used for unpacking, and
compressed data is unpacked up to a limit. Sources: OCI image specification, image-layout.md and config.md; Docker image
specification v1.2.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from contextlib import ExitStack
from itertools import chain
from typing import IO, TYPE_CHECKING, Final, TypeVar

import msgspec

from holdfast.model.decoders import json_decoder
from holdfast.model.errors import FormatError, NotFoundError, StorageError, UnsupportedError, room_hint
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.message_text import listed, size, visible
from holdfast.model.paths import display
from holdfast.sandbox.images.root_tree import RootTree
from holdfast.sandbox.images.tar_format import read_members

if TYPE_CHECKING:
    from collections.abc import Iterator

_T = TypeVar("_T")

MAX_BYTES: Final = 64 << 30
"""Of an image's layers together, unpacked."""
_MAX_JSON: Final = 4 << 20
_MAX_MEMBERS: Final = 10_000
_MAX_LAYERS: Final = 500
_MAX_NESTED: Final = 4
"""Indexes in an index."""
_MAX_DESCRIBED: Final = 2000
"""Manifests and indexes, in all indexes together: one index may be named many times."""
_FREE_BYTES: Final = 1 << 30
_MAX_RATIO: Final = 200
"""A larger ratio of unpacked to packed bytes, beyond `_FREE_BYTES`, is a bomb: system files shrink to a third."""
_MAX_PACKED_MEMBERS: Final = 2_000_000
"""Of gzip, in all layers together: each takes time, and one that holds nothing has 20 bytes. Archives whose files can
be fetched one by one have one for each.
"""
_PIECE: Final = 1 << 20
_PACKED_PIECE: Final = 1 << 16
"""The rest of a packed piece is copied for each part that is unpacked from it."""
_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"


class _Platform(msgspec.Struct, frozen=True):
    architecture: str = ""
    os: str = ""


class _Descriptor(msgspec.Struct, frozen=True, rename="camel"):
    """A reference to a blob."""

    digest: str
    size: int = 0
    media_type: str = ""
    platform: _Platform | None = None


class _Index(msgspec.Struct, frozen=True):
    manifests: tuple[_Descriptor, ...]


class _Manifest(msgspec.Struct, frozen=True):
    config: _Descriptor
    layers: tuple[_Descriptor, ...]


class _DockerImage(msgspec.Struct, frozen=True):
    Config: str
    Layers: tuple[str, ...]


class _RootFiles(msgspec.Struct, frozen=True):
    diff_ids: tuple[str, ...] = ()


class _Configuration(msgspec.Struct, frozen=True):
    architecture: str = ""
    rootfs: _RootFiles = _RootFiles()


class _Part(NamedTuple):
    """A file in the archive."""

    offset: int
    size: int


class _Layers(NamedTuple):
    """An image in the archive."""

    layers: tuple[_Part, ...]
    configuration: _Configuration


def flatten(path: bytes, target: bytes, *, architecture: str, work: bytes) -> str:
    """Write the root file system of the container image in the file ``path`` to the new tar archive ``target``; the
    path of its Python.

    ``architecture`` is the required one, ``work`` a directory for temporary files. Raises `NotFoundError` if there is
    no such file, `FormatError` if it is damaged or no such archive, `EscapeError` for names that lead out of it,
    `UnsupportedError` if it is made for another architecture or has no Python that is new enough, and `StorageError`.
    """
    what = display(path)
    try:
        with ExitStack() as stack:
            archive = _opened(path, what, work, stack)
            found = _Archive(archive, what).image(architecture)
            tree = RootTree()
            budget = _Budget(what)
            for number, (part, said) in enumerate(
                zip(found.layers, found.configuration.rootfs.diff_ids, strict=True), 1
            ):
                layer = stack.enter_context(open(os.path.join(work, b"layer-%d" % number), "w+b"))
                digest = _unpack(archive, part, layer, budget)
                if said != f"sha256:{digest}":
                    raise FormatError(f"{what} is damaged: its layer {number} is not what its SHA-256 says")
                tree.add(layer, f"{what}, layer {number},")
            python = tree.python()
            with open(target, "xb") as output:
                tree.write(output)
            return python
    except OSError as error:
        raise StorageError(f"cannot read {what}: {error.strerror or error}", hint=room_hint(error)) from error


def _opened(path: bytes, what: str, work: bytes, stack: ExitStack) -> IO[bytes]:
    """The archive, unpacked if the whole of it is compressed. ``stack`` closes it."""
    try:
        archive = stack.enter_context(open(path, "rb"))  # noqa: SIM115 - the stack is the context
    except FileNotFoundError:
        raise NotFoundError(f"there is no file {what}") from None
    if not archive.read(4).startswith((_GZIP, _ZSTD)):
        return archive
    unpacked = stack.enter_context(open(os.path.join(work, b"archive"), "w+b"))  # noqa: SIM115
    _unpack(archive, _Part(0, os.fstat(archive.fileno()).st_size), unpacked, _Budget(what))
    return unpacked


class _Archive:
    """The files in an archive by their names."""

    def __init__(self, stream: IO[bytes], what: str) -> None:
        self._stream = stream
        self._what = what
        self._parts: dict[str, _Part] = {}
        self._described = 0
        links: dict[str, str] = {}
        for number, member in enumerate(read_members(stream, what)):
            if number >= _MAX_MEMBERS:
                raise FormatError(f"{what} has more than {_MAX_MEMBERS} files: it is no container's image")
            name = os.path.normpath(os.fsdecode(member.name))
            if member.kind == "file":
                self._parts[name] = _Part(member.offset, member.size)
            elif member.kind == "link":
                # Older versions of Docker store a repeated layer once, and a link to it.
                links[name] = os.path.normpath(os.path.join(os.path.dirname(name), os.fsdecode(member.target)))
            elif member.kind == "hard link":
                links[name] = os.path.normpath(os.fsdecode(member.target))
        for name, target in links.items():
            if target in self._parts:
                self._parts.setdefault(name, self._parts[target])

    def image(self, architecture: str) -> _Layers:
        """The one image that is in it for ``architecture``."""
        if "manifest.json" in self._parts:
            found = self._docker_image()
        elif "index.json" in self._parts:
            found = self._oci_image(architecture)
        else:
            raise FormatError(
                f"{self._what} is no container's image: it has neither index.json nor manifest.json",
                hint="`docker save IMAGE -o FILE` or `skopeo copy SOURCE oci-archive:FILE` makes one",
            )
        layers, said = len(found.layers), len(found.configuration.rootfs.diff_ids)
        if layers != said or not 0 < layers <= _MAX_LAYERS:
            raise FormatError(f"{self._what} is damaged: it has {layers} layers, and says that there are {said}")
        if found.configuration.architecture != architecture:
            raise self._other_architecture([found.configuration.architecture or "none that it names"], architecture)
        return found

    def _docker_image(self) -> _Layers:
        images = self._json("manifest.json", tuple[_DockerImage, ...])
        if len(images) != 1:
            raise FormatError(f"{self._what} holds {len(images)} images: export one alone")
        layers = tuple(self._part(name) for name in images[0].Layers)
        return _Layers(layers, self._json(images[0].Config, _Configuration))

    def _oci_image(self, architecture: str) -> _Layers:
        manifests = list(self._manifests(self._json("index.json", _Index), architecture, _MAX_NESTED))
        fitting = [one for one in manifests if one[0].platform is None or one[0].platform.architecture == architecture]
        if not fitting and manifests:
            raise self._other_architecture(
                [one.platform.architecture for one, _ in manifests if one.platform is not None], architecture
            )
        if len(fitting) != 1:
            raise FormatError(f"{self._what} holds {len(fitting)} images for {architecture}: export one alone")
        manifest = fitting[0][1]
        layers = tuple(self._part(_blob(one)) for one in manifest.layers)
        return _Layers(layers, self._verified_json(manifest.config, _Configuration))

    def _manifests(self, index: _Index, architecture: str, nested: int) -> Iterator[tuple[_Descriptor, _Manifest]]:
        for one in index.manifests:
            self._described += 1
            if self._described > _MAX_DESCRIBED:
                raise FormatError(f"{self._what} has more than {_MAX_DESCRIBED} images and lists of images")
            if one.platform is not None and one.platform.os not in ("", "linux"):
                continue  # the image's attestation is one of those
            if one.media_type.endswith((".index.v1+json", ".manifest.list.v2+json")):
                if nested:
                    yield from self._manifests(self._verified_json(one, _Index), architecture, nested - 1)
            elif _blob(one) in self._parts:  # for other platforms only the name may be present
                yield one, self._verified_json(one, _Manifest)

    def _other_architecture(self, found: list[str], architecture: str) -> UnsupportedError:
        names = listed(sorted({visible(one[:20]) for one in found}))
        return UnsupportedError(f"{self._what} is made for {names}, and this host is {architecture}")

    def _part(self, name: str) -> _Part:
        part = self._parts.get(os.path.normpath(name))
        if part is None:
            raise FormatError(f"{self._what} is damaged: it lacks {visible(name[:100])}")
        return part

    def _verified_json(self, descriptor: _Descriptor, kind: type[_T]) -> _T:
        name = _blob(descriptor)
        data = self._bytes(name)
        if f"sha256:{hashlib.sha256(data).hexdigest()}" != descriptor.digest:
            raise FormatError(f"{self._what} is damaged: its {name} is not what its SHA-256 says")
        return self._decoded(name, data, kind)

    def _json(self, name: str, kind: type[_T]) -> _T:
        return self._decoded(name, self._bytes(name), kind)

    def _decoded(self, name: str, data: bytes, kind: type[_T]) -> _T:
        try:
            return json_decoder(kind).decode(data)
        except (msgspec.DecodeError, RecursionError) as error:
            raise FormatError(f"{self._what} is damaged: its {visible(name[:100])}: {error}") from error

    def _bytes(self, name: str) -> bytes:
        part = self._part(name)
        if part.size > _MAX_JSON:
            raise FormatError(f"{self._what}: its {visible(name[:100])} is larger than {size(_MAX_JSON)}")
        self._stream.seek(part.offset)
        return self._stream.read(part.size)


def _blob(descriptor: _Descriptor) -> str:
    """Where the blob is in the layout."""
    return f"blobs/{descriptor.digest.replace(':', '/', 1)}"


# -- compressed parts -------------------------------------------------------------------------------------------------


class _Budget:
    """How much may still be unpacked."""

    def __init__(self, what: str) -> None:
        self._what = what
        self.packed = 0
        self._unpacked = 0
        self._members = 0

    def take(self, number: int) -> None:
        """Raises `FormatError` if that is too much."""
        self._unpacked += number
        if self._unpacked > MAX_BYTES:
            raise FormatError(f"{self._what} holds more than {size(MAX_BYTES)}")
        if self._unpacked > _FREE_BYTES + _MAX_RATIO * self.packed:
            raise FormatError(f"{self._what} is refused: {size(self.packed)} of it become {size(self._unpacked)}")

    def take_member(self) -> None:
        """Raises `FormatError` if there are too many."""
        self._members += 1
        if self._members > _MAX_PACKED_MEMBERS:
            raise FormatError(f"{self._what} is refused: it is packed in more than {_MAX_PACKED_MEMBERS} pieces")


def _unpack(archive: IO[bytes], part: _Part, target: IO[bytes], budget: _Budget) -> str:
    """Write the content of a part of the archive to ``target``; its SHA-256."""
    digest = hashlib.sha256()
    for piece in _unpacked(_pieces(archive, part, budget), budget):
        digest.update(piece)
        target.write(piece)
    target.flush()
    return digest.hexdigest()


def _pieces(archive: IO[bytes], part: _Part, budget: _Budget) -> Iterator[bytes]:
    at, left = part.offset, part.size
    while left:
        archive.seek(at)
        piece = archive.read(min(left, _PACKED_PIECE))
        if not piece:
            return
        at += len(piece)
        left -= len(piece)
        budget.packed += len(piece)
        yield piece


def _unpacked(pieces: Iterator[bytes], budget: _Budget) -> Iterator[bytes]:
    first = next(pieces, b"")
    if first.startswith(_GZIP):
        unpacked = _gunzip(first, pieces, budget)
    elif first.startswith(_ZSTD):
        unpacked = _unzstd(first, pieces)
    else:
        unpacked = chain((first,), pieces)
    for piece in unpacked:
        budget.take(len(piece))
        yield piece


def _gunzip(first: bytes, pieces: Iterator[bytes], budget: _Budget) -> Iterator[bytes]:
    """Several members may follow each other."""
    budget.take_member()
    try:
        data, unpacker = first, zlib.decompressobj(31)
        while True:
            yield unpacker.decompress(data, _PIECE)
            data = unpacker.unconsumed_tail
            if unpacker.eof:
                data = unpacker.unused_data or next(pieces, b"")
                if not data.startswith(_GZIP[:1]):
                    return  # (zeros, or nothing)
                budget.take_member()
                unpacker = zlib.decompressobj(31)
            elif not data:
                data = next(pieces, b"")
                if not data:
                    raise FormatError("a layer is cut short: its gzip has no end")
    except zlib.error as error:
        raise FormatError(f"a layer is damaged: {error}") from error


def _unzstd(first: bytes, pieces: Iterator[bytes]) -> Iterator[bytes]:
    import zstandard

    class Source:
        """A readable stream of pieces."""

        def __init__(self) -> None:
            self._rest = first

        def read(self, number: int) -> bytes:
            if not self._rest:
                self._rest = next(pieces, b"")
            given, self._rest = self._rest[:number], self._rest[number:]
            return given

    try:
        # 128 MiB: the largest window that zstd itself unpacks by default.
        unpacker = zstandard.ZstdDecompressor(max_window_size=1 << 27)
        with unpacker.stream_reader(Source(), read_across_frames=True, closefd=False) as stream:  # pyright: ignore[reportArgumentType]
            while piece := stream.read(_PIECE):
                yield piece
    except zstandard.ZstdError as error:
        raise FormatError(f"a layer is damaged: {error}") from error
