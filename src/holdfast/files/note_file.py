"""Small files that record work in progress, or past events, for the next process after a kill (I3).

Each is a line of a magic with a version and of a checksum (the first 128 bits of BLAKE3 over the body), and a body.
"""

from __future__ import annotations

import os

from holdfast.files.linux.regular_file import read_regular
from holdfast.model.errors import FormatError, StorageError, room_hint
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.ids import hash_bytes
from holdfast.model.paths import display


class NoteFile(NamedTuple):
    """One kind of note."""

    name: bytes
    """Of the file in the folder."""
    magic: bytes
    what: str
    """Its name in messages."""
    max_bytes: int
    advice: str
    """What the user should do about a damaged one, before it is removed."""

    def write(self, folder: bytes, body: bytes) -> None:
        """Put the note in place: atomic and durable when it returns. Replaces an earlier one. Raises `StorageError`."""
        path = self._path(folder)
        temporary = path + b".new"
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with open(fd, "wb") as file:
                file.write(self._head(body) + b"\n" + body)
                file.flush()
                os.fsync(fd)
            os.rename(temporary, path)
            sync_directory(folder)
        except OSError as error:
            message = f"cannot write {display(path)}: {error.strerror}; nothing was changed"
            raise StorageError(message, hint=room_hint(error)) from error

    def read(self, folder: bytes) -> bytes | None:
        """The body of the note, or None if there is none. Raises `FormatError` if it is damaged or of a newer version,
        `StorageError`.
        """
        path = self._path(folder)
        try:
            data = read_regular(path, self.max_bytes + 1, follow=False)
        except OSError as error:
            raise StorageError(f"cannot read {display(path)}: {error.strerror}") from error
        if data is None:
            if os.path.lexists(path):
                raise self.damaged_error(folder, f"is not {self.what}, but no file at all")
            return None
        head, _, body = data.partition(b"\n")
        if not head.startswith(self.magic) or len(data) > self.max_bytes:
            raise self.damaged_error(folder, f"is not {self.what} of this version")
        if head != self._head(body):
            raise self.damaged_error(folder, "is damaged: its checksum does not match")
        return body

    def remove(self, folder: bytes) -> None:
        """Take the note away. Durable; a missing one is no error. Raises `StorageError`."""
        path = self._path(folder)
        try:
            os.unlink(path)
            sync_directory(folder)
        except FileNotFoundError:
            return
        except OSError as error:
            raise StorageError(f"cannot remove {display(path)}: {error.strerror}") from error

    def damaged_error(self, folder: bytes, why: str) -> FormatError:
        """The error for an unusable note, with the reason ``why``."""
        path = display(self._path(folder))
        return FormatError(f"{path} {why}", hint=f"{self.advice}, and remove {path}")

    def _path(self, folder: bytes) -> bytes:
        return os.path.join(folder, self.name)

    def _head(self, body: bytes) -> bytes:
        return self.magic + hash_bytes(body).hex().encode()


def sync_directory(folder: bytes) -> None:
    """Make the names in the directory ``folder`` durable. Raises `OSError`."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
