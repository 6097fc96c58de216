"""The program ``qemu-img``: it gets the format of every file, and limits, as the files may be hostile.

Source: qemu-img(1).
"""

from __future__ import annotations

import os
import resource
import shutil
from typing import TYPE_CHECKING, TypeVar

import msgspec

from holdfast.model.decoders import json_decoder
from holdfast.model.errors import RefusedError, StorageError, UnsupportedError, room_hint
from holdfast.model.paths import display
from holdfast.snapshot._external_program import ProgramLimits, error_line, execute

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.snapshot._external_program import ProgramResult

_T = TypeVar("_T")

QUICK_SECONDS = 60.0
LONG_SECONDS = 3600.0
"""For what reads or writes all of an image."""

_MAX_OUTPUT = 16 << 20
_MEMORY_BYTES = 4 << 30
_DAMAGED, _LEAKING = 2, 3
"""Exit codes of ``check``."""
_NO_ROOM = "No space left on device"
_TOO_LARGE = "File too large"
_BEGINNINGS = ("qemu-img:",)


class State(msgspec.Struct, frozen=True, rename={"seconds": "date-sec"}):
    """A state that is kept in an image."""

    id: str
    name: str
    seconds: int
    """When it was kept, since 1970."""


class Info(msgspec.Struct, frozen=True, rename="kebab"):
    """The result of ``info``."""

    format: str
    virtual_size: int
    actual_size: int
    snapshots: tuple[State, ...] = ()


class Checked(msgspec.Struct, frozen=True, rename="kebab"):
    """The result of ``check``."""

    check_errors: int = 0
    """Places that could not be examined."""
    corruptions: int = 0
    """Places where content is wrong."""
    leaks: int = 0
    """Clusters that take room and belong to nothing: harmless."""


def find_qemu_img() -> str | None:
    """The program, as the user's ``PATH`` has it."""
    return shutil.which("qemu-img")


class QemuImg:
    """The program, told where to work. No image is opened that the caller has not judged."""

    def __init__(self, directory: bytes, *, max_bytes: int) -> None:
        """It runs in ``directory``, and writes no file beyond ``max_bytes``. Raises `UnsupportedError` if the program
        is missing.
        """
        program = find_qemu_img()
        if program is None:
            raise UnsupportedError(
                "there is no program qemu-img", hint="install it: the package qemu-utils, or qemu-img"
            )
        self._program = program
        self._directory = directory
        self._max_bytes = max_bytes

    def __call__(self, *words: str | bytes, seconds: float = QUICK_SECONDS) -> bytes:
        """Run it, and return its output. Raises `RefusedError` with the code ``in_use`` for an image that another
        process has open, `StorageError` with the code ``image_failed``, or ``image_slow`` if it takes too long.
        """
        ended = self._run(words, seconds)
        if ended.code:
            raise self._failure(words[0], ended)
        return ended.out

    def info(self, name: bytes) -> Info:
        """The facts about the qcow2 image ``name``. Does not open its backing file. Raises as a call."""
        return _decoded(self("info", "-f", "qcow2", "--output=json", name), Info)

    def check(self, name: bytes, *, repair: bool) -> Checked:
        """Check the qcow2 image's structure; ``repair`` frees leaked clusters. Raises as a call."""
        more = ("-r", "leaks") if repair else ()
        words = ("check", "-f", "qcow2", "--output=json", *more, name)
        ended = self._run(words, LONG_SECONDS)
        if ended.code not in (0, _DAMAGED, _LEAKING):
            raise self._failure("check", ended)
        return _decoded(ended.out, Checked)

    def _run(self, words: Sequence[str | bytes], seconds: float) -> ProgramResult:
        environ = {name: os.environ[name] for name in ("PATH", "TMPDIR") if name in os.environ}
        own = {resource.RLIMIT_AS: _MEMORY_BYTES, resource.RLIMIT_FSIZE: self._max_bytes, resource.RLIMIT_CORE: 0}
        limits = ProgramLimits(_MAX_OUTPUT, seconds, "image_slow", resources=own)
        return execute([self._program, *words], environ | {"LC_ALL": "C"}, self._directory, limits)

    def _failure(self, verb: str | bytes, ended: ProgramResult) -> RefusedError | StorageError:
        why = error_line(ended.errors, _BEGINNINGS)
        if '" lock' in ended.errors:
            return RefusedError(
                f"the image is in use: {why}", hint="end the machine that has it open, and try again", code="in_use"
            )
        verb = verb if isinstance(verb, str) else display(verb)
        hint = None
        if _NO_ROOM in ended.errors:
            hint = room_hint(OSError(28, _NO_ROOM))
        elif _TOO_LARGE in ended.errors or ended.code < 0:
            hint = f"an image may have {self._max_bytes} bytes"
        return StorageError(f"qemu-img {verb} failed ({ended.code}): {why}", hint=hint, code="image_failed")


def _decoded(text: bytes, kind: type[_T]) -> _T:
    try:
        return json_decoder(kind).decode(text)
    except msgspec.MsgspecError as error:
        raise StorageError(f"qemu-img says something else than it should: {error}", code="image_failed") from error
