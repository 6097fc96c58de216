"""Runs the commands that a page shows, and compares what they print with what the page shows.

A page shows commands in blocks of ```` ```console ````: lines that begin with ``$ `` (and ``> ``, for more lines of the
same command), each followed by its output. They run in order in one bash, in a fresh home with a small project in it.

- ``...`` as a line of output stands for any lines.
- Times, ages, durations, sizes, ids and process numbers may differ; an id that appears twice has to be the same twice.
- A command has to succeed, unless the next one is ``echo $?``.
- A block of ```` ```console no-run ```` is not run. A comment in the line before it says why: ``<!-- no-run: … -->``.
- ``<!-- run: … -->`` is run and not shown.

``python -m tests.docs.console PAGE…`` writes into the pages what the commands print.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

PROJECT = Path(__file__).parents[2]
_FILES = {
    "shop/src/cart.py": "def total(items):\n    return sum(item.price for item in items)\n",
    "shop/README.md": "# Shop\n",
    "shop/.gitignore": "*.log\n",
    "shop/debug.log": "started\n",
}
_PARTS = re.compile(
    r"^(?:<!-- no-run: (?P<reason>.+) -->\n)?```console(?P<info>.*)\n(?P<block>(?:.*\n)*?)```$"
    r"|^<!-- run: (?P<hidden>.+) -->$",
    re.MULTILINE,
)
_CHANGING = {
    r"\b\d{8}T\d{6,12}Z": "(time)",
    r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d(\.\d+)?)?Z?": "(time)",
    r"\bnow\b|\b\d+ (s|min|h) ago\b": "(age)",
    r"\b\d+(\.\d+)? (ms|s|min)\b": "(duration)",
    r"\b[\d.,]+ ([kMG]i?)?B\b": "(size)",
    r"\b(process|pid|port) \d+": r"\1 (number)",
    r"\b127\.0\.0\.1:\d+": "127.0.0.1:(port)",
    r"\bby (fanotify|inotify|polling)\b": "by (backend)",
    r" {2,}": " ",
}
_ID = re.compile(r"\b(?:[a-z]+-)?(?=[a-f]*\d)[0-9a-f]{7,64}\b")


@dataclass(slots=True)
class Step:
    """A command, the output that the page shows, and where that is in the page."""

    command: str
    shown: str = ""
    span: tuple[int, int] | None = None
    code: int = 0
    printed: str = ""


@dataclass(slots=True)
class Page:
    """What a page has to run, and why it does not run the rest."""

    text: str
    steps: list[Step] = field(default_factory=list)
    reasons: list[str | None] = field(default_factory=list)


def read(path: Path) -> Page:
    """The commands of a page, in order."""
    page = Page(path.read_text())
    for found in _PARTS.finditer(page.text):
        if found["hidden"]:
            page.steps.append(Step(found["hidden"]))
        elif found["info"].strip() == "no-run":
            page.reasons.append(found["reason"])
        elif not found["info"]:
            page.steps += _commands(found["block"], found.start("block"))
        else:
            raise ValueError(f"{path}: a console block has the word {found['info'].strip()!r}; known is no-run")
    return page


def _commands(block: str, start: int) -> list[Step]:
    """The commands of one block, with their outputs."""
    found: list[Step] = []
    for line in block.splitlines(keepends=True):
        end = start + len(line)
        if line.startswith("$ "):
            found.append(Step(line[2:].rstrip("\n"), span=(end, end)))
        elif line.startswith("> ") and not found[-1].shown:
            found[-1].command += "\n" + line[2:].rstrip("\n")
            found[-1].span = (end, end)
        else:
            span = found[-1].span
            assert span
            found[-1].shown += line
            found[-1].span = (span[0], end)
        start = end
    return found


def run(
    page: Page, folder: Path, services: Mapping[str, str] | None = None, variables: Mapping[str, str] | None = None
) -> None:
    """Run the page's commands below ``folder``, and note what they print and how they end.

    ``services``: addresses that the page shows, and those that are there. ``variables``: more of the environment.
    """
    home = folder / "you"
    for name, content in _FILES.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(content)
    shutil.copytree(PROJECT / "examples", home / "holdfast/examples", ignore=shutil.ignore_patterns("__*"))
    programs = folder / "bin"
    programs.mkdir()
    for name, words in (("holdfast", "-m holdfast"), ("python", "")):
        (programs / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words} "$@"\n')
        (programs / name).chmod(0o755)
    environ = {
        "HOME": str(home),
        "PATH": f"{programs}:{os.environ['PATH']}",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "USER": "you",
        "EMAIL": "you@example.org",
        "GIT_AUTHOR_NAME": "you",
        "GIT_COMMITTER_NAME": "you",
        **{name: value for name, value in os.environ.items() if name.startswith(("COVERAGE_", "HOLDFAST_NATIVE"))},
        **(variables or {}),
    }
    exchanged = {"/home/you": str(home), "127.0.0.1:7420": f"127.0.0.1:{_free_port()}", **(services or {})}
    mark = f"---{secrets.token_hex(8)} "
    noted = f"{{ code=$?; printf '\\n{mark}%d\\n' $code; (exit $code); }} 2>/dev/null"
    script = "".join(f"{_replaced(step.command, exchanged)}\n{noted}\n" for step in page.steps)
    with tempfile.TemporaryFile("w+") as output:
        shell = subprocess.Popen(
            ["bash", "-c", script],
            cwd=home / "shop",
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        shell.wait(300)
        output.seek(0)
        parts = re.split(rf"\n{mark}(\d+)\n", output.read())
    back = {there: here for here, there in exchanged.items()}
    for step, printed, code in zip(page.steps, parts[::2], parts[1::2], strict=False):
        step.printed = _replaced(printed, back)
        step.printed += "\n" * bool(step.printed and not step.printed.endswith("\n"))
        step.code = int(code)
    if len(parts) // 2 != len(page.steps):
        raise AssertionError(f"the shell ended at {page.steps[len(parts) // 2].command!r}: {parts[-1]}")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def _replaced(text: str, replacements: dict[str, str]) -> str:
    for here, there in replacements.items():
        text = text.replace(here, there)
    return text


def check(page: Page) -> None:
    """Raise AssertionError, with both texts, at the first command that did not do what the page shows."""
    ids: dict[str, str] = {}
    for step, following in zip(page.steps, [*page.steps[1:], Step("")], strict=True):
        if step.code and following.command != "echo $?":
            raise AssertionError(f"$ {step.command}\n{step.printed}(exit {step.code})")
        if step.span and not _matches(step.shown.splitlines(), step.printed.splitlines(), ids):
            raise AssertionError(f"$ {step.command}\n--- the page shows\n{step.shown}--- it prints\n{step.printed}")


def _matches(shown: list[str], printed: list[str], ids: dict[str, str]) -> bool:
    """Whether the lines are the same but for what changes each time; notes the ids in ``ids``."""
    at, anywhere = 0, False
    while shown:
        if shown[0].strip() == "...":
            shown, anywhere = shown[1:], True
            continue
        length = shown.index("...") if "..." in shown else len(shown)
        block = shown[:length]
        places = range(at, len(printed) - length + 1) if anywhere else range(at, at + 1)
        if anywhere and length == len(shown):
            places = range(max(at, len(printed) - length), len(printed) - length + 1)
        for place in places:
            tried = dict(ids)
            if all(_same(*pair, tried) for pair in zip(block, printed[place:], strict=False)) and (
                place + length <= len(printed)
            ):
                ids.update(tried)
                at, anywhere = place + length, False
                break
        else:
            return False
        shown = shown[length:]
    return anywhere or at == len(printed)


def _same(shown: str, printed: str, ids: dict[str, str]) -> bool:
    """Whether two lines are the same but for what changes; adds their ids to ``ids``."""
    for pattern, placeholder in _CHANGING.items():
        shown, printed = re.sub(pattern, placeholder, shown), re.sub(pattern, placeholder, printed)
    if _ID.sub("(id)", shown).strip() != _ID.sub("(id)", printed).strip():
        return False
    return all(ids.setdefault(a, b) == b for a, b in zip(_ID.findall(shown), _ID.findall(printed), strict=True))


def _write(path: Path) -> None:
    """Put into the page what its commands print, where that is not what stands there."""
    page = read(path)
    with tempfile.TemporaryDirectory() as folder:
        run(page, Path(folder))
    ids: dict[str, str] = {}
    wrong: list[Step] = []
    for step in page.steps:
        if step.span and not _matches(step.shown.splitlines(), step.printed.splitlines(), ids):
            wrong.append(step)
            _matches(step.printed.splitlines(), step.printed.splitlines(), ids)
        if step.code:
            print(f"{path.name}: exit {step.code}: {step.command}", file=sys.stderr)
    text = page.text
    for step in reversed(wrong):
        assert step.span
        text = text[: step.span[0]] + step.printed + text[step.span[1] :]
    path.write_text(text)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        _write(Path(name))
