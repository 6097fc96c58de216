"""Data that is collected before it is sent: small amounts in memory, larger ones in an unnamed temporary file."""

from __future__ import annotations

import tempfile
from typing import IO

from holdfast.model.errors import StorageError

_IN_MEMORY_BYTES = 8 << 20


class UploadSpool:
    """The bytes of an upload whose key is not known yet. One that cannot be written closes itself."""

    __slots__ = ("_file",)

    def __init__(self, scratch: str | None) -> None:
        """The temporary file is made in the directory ``scratch`` (None: where the system has such files)."""
        self._file: IO[bytes] | None = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES, dir=scratch)  # noqa: SIM115 - `close` closes it

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append ``data``; raises `StorageError` if it cannot be written, or the spool is closed."""
        file = self._open()
        try:
            file.write(data)
        except OSError as error:
            self.close()
            raise _cannot(error) from error

    def rewound(self) -> tuple[IO[bytes], int]:
        """All of it, to be read from its beginning until `close`, and its size; raises `StorageError` as `write`."""
        file = self._open()
        try:
            size = file.tell()
            file.seek(0)
        except OSError as error:
            raise _cannot(error) from error
        return file, size

    def close(self) -> None:
        """Throw it away. Harmless a second time."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> IO[bytes]:
        if self._file is None:
            raise StorageError("this upload has ended: it was committed, aborted, or could not be written")
        return self._file


def _cannot(error: OSError) -> StorageError:
    return StorageError(f"cannot collect an object in a temporary file: {error.strerror or error}")
