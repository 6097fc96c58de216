"""The text of messages for people: counts, sizes, steps, processes, and what others have written made safe to print."""

from __future__ import annotations

from holdfast.model.fast_typing import TYPE_CHECKING, Protocol
from holdfast.model.paths import display

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from holdfast.model.answers import workspace as answers
    from holdfast.model.entries import NotCaptured
    from holdfast.model.machine import RunningMachine

_FEW = 10
_MAX_PROCESSES_NAMED = 3
_MAX_PROCESSES = 20
_COMMAND_CHARS = 80


class Process(Protocol):
    """A process of a run."""

    @property
    def pid(self) -> int:
        """Its number."""
        ...

    @property
    def command(self) -> tuple[bytes, ...]:
        """Its argument list."""
        ...


def listed(things: Iterable[object]) -> str:
    """``3, 4 and 5``; of one thing just that."""
    *rest, last = map(str, things)
    return f"{', '.join(rest)} and {last}" if rest else last


def with_article(noun: str) -> str:
    """``an undo``, ``a restore``."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def plural(number: int, noun: str, many: str | None = None) -> str:
    """``1 file``, ``2 files``, ``12,000 files``."""
    return f"{number:,} {noun if number == 1 else many or noun + 's'}"


def named_steps(steps: Iterable[int]) -> str:
    """``step 3``, or ``steps 3, 4 and 5``: each once, by their numbers. There has to be one. Of many, ``steps 3 to 400
    and 402``.
    """
    numbers = sorted(set(steps))
    return f"step{'s' if len(numbers) > 1 else ''} {listed(numbers if len(numbers) <= _FEW else _ranges(numbers))}"


def step_options(steps: Iterable[int]) -> str:
    """The options that name the steps to a command, with a space before: `` --step 3 --step 4``; more than two by
    number, in ranges: `` --step 3-400 --step 402``.
    """
    numbers = list(dict.fromkeys(steps))
    if len(numbers) <= 2:
        return "".join(f" --step {number}" for number in numbers)
    # Numbers of ambient steps are negative, and a range of them could not be parsed.
    ambient = sorted(number for number in numbers if number < 0)
    return "".join(
        f" --step {each}" for each in (*ambient, *_ranges(sorted({*numbers}.difference(ambient)), between="-"))
    )


def _ranges(numbers: Sequence[int], between: str = " to ") -> Iterator[str]:
    first = numbers[0] if numbers else 0
    for number, following in zip(numbers, (*numbers[1:], None), strict=True):
        if following != number + 1:
            yield str(first) if first == number else f"{first}{between}{number}"
            first = following or 0


def could_not_change(items: Iterable[NotCaptured]) -> str:
    """``could not change 3 paths: CAUSE (a, b); CAUSE (c)``."""
    by_cause: dict[str, list[str]] = {}
    for path, reason in items:
        by_cause.setdefault(reason, []).append(visible(display(path)))
    causes = [f"{cause} ({', '.join([*paths[:3], '…'][: len(paths)])})" for cause, paths in by_cause.items()]
    number = len({path for paths in by_cause.values() for path in paths})
    return f"could not change {plural(number, 'path')}: {'; '.join([*causes[:3], '…'][: len(causes)])}"


def named_processes(processes: Sequence[Process]) -> str:
    """Processes by number and command, for people."""
    shown = ", ".join(f"process {one.pid} ({_command(one)})" for one in processes[:_MAX_PROCESSES_NAMED])
    more = len(processes) - _MAX_PROCESSES_NAMED
    return f"{shown} and {more} more" if more > 0 else shown


def process_details(processes: Sequence[Process]) -> list[answers.Process]:
    """The same, for programs."""
    from holdfast.model.answers.workspace import Process
    from holdfast.model.json_encoder import encode_all

    return encode_all(Process, processes[:_MAX_PROCESSES])


def _command(process: Process) -> str:
    return display(b" ".join(process.command))[:_COMMAND_CHARS] or "?"


def first_line(text: str, most: int) -> str:
    """The first line of a text; beyond the limit of characters it is cut and ends with ``…``."""
    line = text.strip().partition("\n")[0].strip()
    return line if len(line) <= most else f"{line[: most - 1]}…"


def size(number: int) -> str:
    """Bytes for people: ``812 B``, ``6.7 kB``, ``1.2 GB`` (powers of 1000)."""
    amount = float(number)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 999.5:
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 99.5 else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def described_machine(machine: RunningMachine) -> str:
    """A virtual machine in one line: ``image default, emulated, files by virtiofs, 270 MB of memory``."""
    how = "KVM" if machine.accelerator == "kvm" else "emulated"
    files, memory = machine.filesystem, size(machine.memory_bytes)
    return f"image {machine.image}, {how}, files by {files}, {memory} of memory"


# Text that can be shown: without characters that drive a terminal or disguise the text.

# C0, DEL and C1 drive terminals. Bidirectional and line-separating characters disguise text. Lone surrogates cannot be
# encoded.
_UNSAFE = "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"


def visible(text: str) -> str:
    r"""``text`` on one line; characters that could drive or deceive a terminal become ``\xHH`` of their UTF-8 bytes."""
    if text.isascii() and text.isprintable():
        return text  # most is, and then nothing has to be loaded
    import re

    return re.sub(_UNSAFE, lambda match: escaped(match[0]), text)


def escaped(character: str) -> str:
    r"""``\xHH`` for each byte of a character in UTF-8, or for the byte of a lone surrogate."""
    if "\udc80" <= character <= "\udcff":
        return f"\\x{ord(character) - 0xDC00:02x}"
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogatepass"))
