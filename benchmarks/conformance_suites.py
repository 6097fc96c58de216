"""The public suites that ``conformance.py`` runs: how each is started, and what it says of its cases.

As a program it is the process that runs one suite, so that the whole suite is one command: of ``holdfast run``, say.

    python conformance_suites.py SUITE PATH GROUND    (a `Ground` as a JSON object; prints the cases as one)
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

PASSED, SKIPPED = "passed", "skipped"
"""What a case is; of one that has failed its own words are kept instead."""

SECONDS = 900
"""What takes longer hangs."""
LONGEST = 300
"""Characters kept of what a failed case says."""

Cases = dict[str, str]


class Ground(NamedTuple):
    """Where a suite is run."""

    work: str
    """An empty directory of the file system that is examined."""
    behind: str | None
    """The same directory as the backing file system shows it, where there is one."""
    aside: str
    """An empty directory elsewhere, for what a suite writes about itself."""
    jobs: int
    """How much may run at once."""
    seconds: int
    """How long a stressor runs."""
    operations: int
    """How many operations fsx does for a case."""
    share: int = 1
    """Every how manieth of the suite's programs is run,"""
    only: Sequence[str] = ()
    """of these, or of all if there are none."""

    def chosen(self, programs: Iterable[str]) -> list[str]:
        return [name for name in programs if not self.only or name in self.only][:: self.share]


class Suite(NamedTuple):
    """One public suite."""

    what: str
    source: str
    """Where it is to be had, and built as it says itself."""
    found: Callable[[Path], bool]
    """Whether the given path is what `run` needs."""
    run: Callable[[Path, Ground], Cases]
    privileged: bool = False
    """Whether it asks what only root may do with all its capabilities."""


def _said(
    words: Sequence[str | Path], cwd: str | Path, environment: dict[str, str] | None = None, seconds: int = SECONDS
) -> tuple[int | None, str]:
    """The exit code (none of what hangs: it is killed, with all that it has started) and the output, errors included."""
    process = subprocess.Popen(
        words,
        cwd=cwd,
        env=os.environ | (environment or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        said = process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return None, process.communicate()[0]
    return process.returncode, said


def _short(words: str) -> str:
    return " ".join(words.split())[:LONGEST]


# pjdfstest: one program for each file of tests, which speaks TAP.

_TAP = re.compile(r"^(not )?ok (\d+)(?: -)?(?: (.*))?$")
_PLAN = re.compile(r"^1\.\.(\d+)$", re.MULTILINE)
_RANDOM = re.compile(r"(?:pjdfstest_)?[0-9a-f]{32,}")


def _tap(said: str) -> Iterator[tuple[int, str]]:
    """The cases that a program planned, by their numbers."""
    plan = _PLAN.search(said)
    if plan is None:
        yield 0, f"no plan: {_short(said[-LONGEST:])}"
        return
    seen: dict[int, str] = {}
    for line in said.splitlines():
        if found := _TAP.match(line):
            failed, number, words = found.groups()
            kind = SKIPPED if "# TODO" in line or "# skip" in line else PASSED
            seen[int(number)] = _short(_RANDOM.sub("NAME", words or "not ok")) if failed and kind is PASSED else kind
    for number in range(1, int(plan[1]) + 1):
        yield number, seen.get(number, "not reached")


def _pjdfstest(top: Path, ground: Ground) -> Cases:
    def one(name: str) -> list[tuple[str, str]]:
        directory = Path(ground.work, name.replace("/", "-"))
        directory.mkdir()
        _, said = _said(["sh", top / "tests" / name], directory)
        Path(ground.aside, f"{directory.name}.tap").write_text(said)
        return [(f"{name} {number}", words) for number, words in _tap(said)]

    with ThreadPoolExecutor(ground.jobs) as pool:
        scripts = ground.chosen(str(path.relative_to(top / "tests")) for path in sorted((top / "tests").rglob("*.t")))
        return dict(case for cases in pool.map(one, scripts) for case in cases)


# test_syscalls: one program, which numbers its cases; a second time with files that have no name any more.

_SYSCALL = re.compile(r"^(?:\+ *[\d.]+s)? *(\d+) \[(.*?)\] ?(.*)$")


def _test_syscalls(path: Path, ground: Ground) -> Cases:
    found: Cases = {}
    behind = [f":{ground.behind}"] if ground.behind else []
    for kind, words in {"": behind, "unlinked, ": ["-u"]}.items():
        code, said = _said([path, ground.work, *words], ground.aside)
        for line in said.splitlines():
            if match := _SYSCALL.match(line):
                case, verdict = f"{kind}{match[1]} {match[2]}", match[3]
                if verdict in ("START", "SKIP"):
                    found[case] = SKIPPED  # (It says nothing more of what it finds it cannot do.)
                elif verdict == "OK":
                    found[case] = PASSED
                elif found[case] == SKIPPED:
                    found[case] = _short(verdict)
        ended = code is not None and code >= 0
        found[f"{kind}to its end"] = PASSED if ended else "it hangs" if code is None else f"signal {-code}"
    return found


# fsx: one program, which does operations at random and compares; a seed is a case.

_ALIGNED = ("-r", "4096", "-w", "4096", "-t", "4096")
_FSX = {
    "mapped": (),
    "read and written": ("-R", "-W"),
    "closed often": ("-c", "10"),
    "flushed and dropped": ("-f",),
    "direct": ("-Z", "-R", "-W", *_ALIGNED),
    "asynchronous": ("-A", "-R", "-W"),
}
_FSX_SAYS = re.compile(
    r"^(?!Seed|fsx:|main:).*(?:ERROR|BAD DATA|:.*error|doread|dowrite|short|[Ff]ail|[Mm]ismatch|!=).*$", re.MULTILINE
)


def _fsx(path: Path, ground: Ground) -> Cases:
    def one(kind: str, seed: int) -> str:
        file = Path(ground.work, f"{kind.replace(' ', '-')}-{seed}")
        counted = ("-N", str(ground.operations), "-S", str(seed), "-P", ground.aside)
        code, said = _said([path, *counted, *_FSX[kind], file], ground.aside)
        if code == 0:
            return PASSED
        match = _FSX_SAYS.search(said)
        return "it hangs" if code is None else f"exit code {code}: {_short(match[0] if match else said[-LONGEST:])}"

    cases = {f"{kind}, seed {seed}": (kind, seed) for kind in _FSX for seed in range(1, 5)}
    names = ground.chosen(cases)
    with ThreadPoolExecutor(ground.jobs) as pool:
        return dict(zip(names, pool.map(lambda name: one(*cases[name]), names), strict=True))


# stress-ng: a stressor is a case.

ELSEWHERE = frozenset({"bind-mount", "binderfs", "eventfd", "ioprio", "procfs"})
"""Stressors of the class that do nothing in the directory they are given."""


def _stress_ng(path: Path, ground: Ground) -> Cases:
    _, said = _said([path, "--class", "filesystem?"], ground.aside)
    found: Cases = {}
    for name in ground.chosen(sorted(set(said.partition(": ")[2].split()) - ELSEWHERE)):
        directory = Path(ground.work, name)
        directory.mkdir()
        words = [f"--{name}", "2", "--timeout", str(ground.seconds), "--verify", "--temp-path", directory]
        code, said = _said([path, *words], directory)
        lines = re.findall(r"^stress-ng: (?:fail|error): +\[\d+\] (.*)$", said, re.MULTILINE)
        if code == 0:
            found[name] = PASSED
        elif code in (3, 4):
            found[name] = SKIPPED
        else:
            found[name] = (
                "it hangs" if code is None else f"exit code {code}: {_short(' / '.join(lines[:3]) or said[-LONGEST:])}"
            )
    return found


# CPython: one process for each module of tests, which writes what came of its cases as JUnit does.

MODULES = """
    test_os test_posix test_shutil test_pathlib test_tempfile test_zipfile test_tarfile test_mmap test_fcntl test_io
    test_fileio test_largefile test_dbm test_sqlite3 test_bufio test_bz2 test_compileall test_configparser test_dbm_dumb
    test_dbm_gnu test_dbm_ndbm test_eintr test_epoll test_file test_file_eintr test_filecmp test_fileinput
    test_genericpath test_glob test_gzip test_import test_importlib test_linecache test_lzma test_mailbox test_netrc
    test_posixpath test_pty test_py_compile test_runpy test_selectors test_shelve test_signal test_stat
    test_univnewlines test_venv test_zipapp test_zipimport
""".split()  # noqa: SIM905 - a list that long is no easier to read with quotes
"""Of CPython's own tests, those that are about files, and some that are about what surrounds them."""


def _cpython(python: Path, ground: Ground) -> Cases:
    def one(module: str) -> Cases:
        directory, report = Path(ground.work, module), Path(ground.aside, f"{module}.xml")
        directory.mkdir()
        words = [python, "-m", "test", "--junit-xml", report, "--tempdir", directory, module]
        code, said = _said(words, directory, {"TMPDIR": str(directory)})
        if f"\n{module} skipped" in said:
            return {f"{module} to its end": SKIPPED}
        if not report.exists() or not report.stat().st_size:
            return {
                f"{module} to its end": "it hangs" if code is None else f"exit code {code}: {_short(said[-LONGEST:])}"
            }
        return dict(_junit(module, report))

    with ThreadPoolExecutor(ground.jobs) as pool:
        return {case: words for cases in pool.map(one, ground.chosen(MODULES)) for case, words in cases.items()}


def _junit(module: str, report: Path) -> Iterator[tuple[str, str]]:
    yield f"{module} to its end", PASSED
    for case in ElementTree.parse(report).iter("testcase"):
        bad = [child for child in case if child.tag in ("error", "failure")]
        skipped = case.get("result") == "skipped" or any(child.tag == "skipped" for child in case)
        # (What has failed ends with the exception.)
        said = _short((bad[0].text or bad[0].get("message") or "failed")[-LONGEST:]) if bad else PASSED
        yield f"{module} {case.get('name')}", SKIPPED if skipped else said


# Git: one script for each subject, which speaks TAP.

SCRIPTS = """
    t0001-init t0021-conversion t1300-config t1400-update-ref t3200-branch t3404-rebase-interactive t3903-stash
    t5304-prune t7300-clean t7400-submodule-basic t7508-status t9300-fast-import
""".split()  # noqa: SIM905 - a list that long is no easier to read with quotes


_SCRIPT_SECONDS = 4 * SECONDS
"""t0008-ignores takes half an hour in an emulated guest on a busy machine."""


def _git(top: Path, ground: Ground) -> Cases:
    def one(name: str) -> list[tuple[str, str]]:
        words = ["sh", f"{name}.sh", f"--root={ground.work}/{name}"]
        _, said = _said(
            words, top / "t", {"TEST_OUTPUT_DIRECTORY": ground.aside, "TMPDIR": ground.work}, _SCRIPT_SECONDS
        )
        return [(f"{name} {number}", words) for number, words in _tap(said)]

    with ThreadPoolExecutor(ground.jobs) as pool:
        scripts = ground.chosen([*SCRIPTS, *(name for name in ground.only if name not in SCRIPTS)])
        return dict(case for cases in pool.map(one, scripts) for case in cases)


def _is_program(path: Path) -> bool:
    return os.access(path, os.X_OK) and path.is_file()


SUITES = {
    "pjdfstest": Suite(
        "the directory with `pjdfstest`, built, and `tests`",
        "https://github.com/pjd/pjdfstest",
        lambda path: _is_program(path / "pjdfstest") and (path / "tests").is_dir(),
        _pjdfstest,
        privileged=True,
    ),
    "test_syscalls": Suite(
        "the program of that name",
        "https://github.com/libfuse/libfuse (test/test_syscalls.c)",
        _is_program,
        _test_syscalls,
        privileged=True,
    ),
    "fsx": Suite("the program of that name", "https://github.com/kdave/xfstests (ltp/fsx.c)", _is_program, _fsx),
    "stress-ng": Suite("the program of that name", "the Debian package stress-ng", _is_program, _stress_ng),
    "cpython": Suite(
        "a `python` that has its own tests (the package `test`)",
        "https://github.com/python/cpython, as pyenv builds it, or the Debian package libpython3-testsuite",
        _is_program,
        _cpython,
    ),
    "git": Suite(
        "the directory with the sources of Git, built",
        "https://github.com/git/git (`make`)",
        lambda path: (path / "t" / "test-lib.sh").is_file() and (path / "GIT-BUILD-OPTIONS").is_file(),
        _git,
    ),
}

if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)  # (What a shell starts in the background ignores them.)
    print(json.dumps(SUITES[sys.argv[1]].run(Path(sys.argv[2]), Ground(**json.loads(sys.argv[3])))))
