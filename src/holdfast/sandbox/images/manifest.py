"""The stored facts about an image: docs/formats/image.md."""

from __future__ import annotations

import re
from typing import Final, Literal

import msgspec

from holdfast.files.note_file import NoteFile
from holdfast.model.decoders import json_decoder
from holdfast.model.errors import UsageError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.ids import hash_bytes
from holdfast.model.message_text import visible

DEFAULT_NAME: Final = "default"
"""The image that a machine begins as unless another one is named."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}\Z")

NOTE: Final = NoteFile(b"manifest", b"HFIM 1 ", "a manifest of an image", 1 << 20, "build or import the image again")


class StoredFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of an image's files."""

    sha256: str
    """64 hex digits, which are its name."""
    bytes: int


class ImageManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All about an image but its name."""

    version: Literal[1] = 1
    architecture: str
    """As Debian says it: ``amd64``."""
    source: str
    """The source of the root file system: a suite and a mirror, or ``archive``."""
    packages: tuple[str, ...] = ()
    """Of Debian's, that were asked for; none for an archive."""
    commands: tuple[str, ...] = ()
    """The commands that ran in it."""
    python: str
    """The path of its Python, from the root."""
    kernel_release: str
    """As ``uname -r`` says it."""
    kernel_package: str
    """``NAME=VERSION``."""
    modules: tuple[str, ...]
    """The modules that the initrd loads, in order. A kernel without an optional one lacks that file system."""
    boot: str
    """Identifies kernel and initrd: equal keys mean equal files."""
    init: str
    """Identifies the initrd's first program, and its requested modules."""
    kernel: StoredFile
    initrd: StoredFile
    root: StoredFile
    created_at: int
    """Microseconds since 1970."""

    def files(self) -> tuple[StoredFile, StoredFile, StoredFile]:
        """Its kernel, initrd and root file system."""
        return self.kernel, self.initrd, self.root


class Image(NamedTuple):
    """An image that a machine can begin as."""

    name: str
    id: str
    """32 hex digits: the hash of its manifest."""
    kernel: bytes
    """The path of the file that a machine is started with: an ELF file that boots by PVH, or a packed kernel."""
    initrd: bytes
    """The path of the initrd, to which the host appends an archive at each start."""
    root: bytes
    """The path of the root file system, a squashfs."""
    manifest: ImageManifest


def check_name(name: str) -> str:
    """Return ``name`` if an image can be called so. Raises `UsageError`."""
    if not _NAME.match(name):
        raise UsageError(
            f"{visible(name[:65])!r} is no name for an image",
            hint="letters, digits, '.', '_' and '-', 64 at most, a letter or a digit first",
        )
    return name


def encode_manifest(manifest: ImageManifest) -> bytes:
    """The body of a manifest's file."""
    return msgspec.json.encode(manifest) + b"\n"


def decode_manifest(body: bytes, folder: bytes) -> ImageManifest:
    """The manifest in a body that was read in ``folder``. Raises `FormatError` for an invalid one."""
    try:
        manifest = json_decoder(ImageManifest).decode(body)
    except msgspec.DecodeError as error:
        raise NOTE.damaged_error(folder, f"is no manifest of an image of this version: {error}") from error
    for file in manifest.files():
        if not _DIGEST.match(file.sha256) or file.bytes < 0:
            raise NOTE.damaged_error(folder, "has the name of a file that is no SHA-256")
    return manifest


def image_id(body: bytes) -> str:
    """An image's id, independent of its name: the same id means the same bytes in every part."""
    return hash_bytes(body).hex()
