"""The score of an attempt, from a command that examines its result, or from a function of the caller."""

from __future__ import annotations

import importlib.util
import math
import os
import sys
from typing import TYPE_CHECKING, cast

from holdfast.model.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

    from holdfast.engine.experiments.attempts import Score
    from holdfast.model.session_types import CommandEntry, CommandResult


def number_in(output: str) -> float | None:
    """The last non-empty line of ``output`` as a number; None if it is no finite number."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    try:
        number = float(lines[-1]) if lines else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def score_of(result: CommandResult | None) -> tuple[float | None, str]:
    """The score from a scoring command, or the reason why there is none."""
    if result is None:
        return None, "the scoring command did not run to its end"
    if result.timed_out:
        return None, "the scoring command took too long"
    if result.exit_code != 0:
        return None, f"the scoring command ended with {result.exit_code}"
    score = number_in(result.stdout)
    return score, "" if score is not None else "the last line that the scoring command printed is no number"


def score_environment(entry: CommandEntry, number: int, output: bytes) -> Mapping[str, str]:
    """The variables that describe the attempt to a scoring command; the attempt's output is written to ``output``."""
    result = entry.result
    for name, text in (("stdout", result.stdout), ("stderr", result.stderr)) if result is not None else ():
        with open(os.path.join(output, name.encode()), "wb") as file:
            file.write(text.encode("utf-8", "surrogateescape"))
    return {
        "ATTEMPT": str(number),
        "ATTEMPT_EXIT_CODE": "" if result is None else str(result.exit_code),
        "ATTEMPT_DURATION_MS": str(entry.duration_ms),
        "ATTEMPT_STDOUT": os.fsdecode(os.path.join(output, b"stdout")),
        "ATTEMPT_STDERR": os.fsdecode(os.path.join(output, b"stderr")),
    }


def load_function(text: str) -> Score:
    """The function that ``text`` names: ``FILE.py:NAME``, or ``MODULE:NAME`` of what can be imported.

    Loading it runs the file. Raises `UsageError`, or `NotFoundError` (code ``no_such_path``).
    """
    place, separator, name = text.rpartition(":")
    if not separator or not place or not name.isidentifier():
        raise UsageError(f"{text!r} names no function", hint="name it as FILE.py:NAME or MODULE:NAME")
    try:
        module = _load_file(place) if place.endswith(".py") else importlib.import_module(place)
    except ImportError as error:
        raise UsageError(f"{place} cannot be loaded: {error}") from error
    found = getattr(module, name, None)
    if not callable(found):
        raise UsageError(f"there is no function {name} in {place}")
    return cast("Score", found)


def _load_file(path: str) -> ModuleType:
    if not os.path.isfile(path):
        raise NotFoundError(f"there is no file {path!r}", code="no_such_path")
    spec = importlib.util.spec_from_file_location(f"holdfast_score_{abs(hash(os.path.realpath(path)))}", path)
    if spec is None or spec.loader is None:
        raise ImportError("it is no Python source")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[spec.name]
        raise UsageError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
    return module
