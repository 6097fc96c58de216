"""Whether what is mounted over a directory keeps what POSIX and the kernel promise: public suites, natively and on each.

    python benchmarks/conformance.py --pjdfstest DIR --test-syscalls FILE --fsx FILE --stress-ng FILE
        [--directory DIR] [--subjects NAME...] [--seconds 5] [--operations 10000] [--json FILE]

Run as root: most of what the suites ask is asked of several users. The subjects are bindfs, fuse-overlayfs and libfuse's
passthrough_hp, where they are found on the path, and Holdfast's own bridge; the backing file system is that of `--directory`,
and is examined first. A case that does not pass there counts against nobody. The suites come from elsewhere, built as they
themselves say, and each that is named is run:
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from compare import machine
from conformance_suites import PASSED, SKIPPED, SUITES, Cases, Ground
from run import file_system, stand_apart
from run_subjects import BEHIND, BRIDGE, NATIVE, PEERS, Failed, Subject, available, call

SUBJECTS = (BRIDGE, *(peer for peer in PEERS if peer.name != "overlayfs"))


class Examination:
    """The suites, the subjects and what came of them."""

    def __init__(self, base: Path, given: argparse.Namespace, suites: dict[str, Path]) -> None:
        self.base, self.given, self.suites = base, given, suites
        self.cases: dict[str, dict[str, Cases]] = {name: {} for name in suites}
        self.spots = 0

    @contextmanager
    def ground(self, subject: Subject) -> Iterator[Ground]:
        self.spots += 1
        base = self.base / f"{self.spots:03d}-{subject.name}"
        for name in ("start", "aside"):
            (base / name).mkdir(parents=True)
            (base / name).chmod(0o777)
        with subject.place(base, base / "start") as work:
            behind, given = base / BEHIND, self.given
            yield Ground(
                work, behind if behind.is_dir() else None, base / "aside", given.jobs, given.seconds, given.operations
            )

    def run(self, subject: Subject) -> None:
        for name, path in self.suites.items():
            began = time.monotonic()
            try:
                with self.ground(subject) as ground:
                    self.cases[name][subject.name] = SUITES[name].run(path, ground)
            except Failed as error:
                self.cases[name].setdefault(subject.name, {})["mounting"] = str(error)
            print(f"{subject.name}: {name}: {self.summary(name, subject.name)}, {time.monotonic() - began:.0f} s")
            for case, words in self.against(name, subject.name).items():
                print(f"    {case}: {words}", flush=True)

    def against(self, suite: str, subject: str) -> Cases:
        """The cases that count against ``subject``: those that pass natively, and not there."""
        native, own = self.cases[suite][NATIVE.name], self.cases[suite][subject]
        if subject == NATIVE.name:
            return {case: words for case, words in native.items() if words not in (PASSED, SKIPPED)}
        found = {case: own.get(case, "not run") for case, words in native.items() if words == PASSED}
        return {case: words for case, words in found.items() if words != PASSED}

    def summary(self, suite: str, subject: str) -> str:
        cases = self.cases[suite][subject].values()
        passed, skipped = (sum(words == kind for words in cases) for kind in (PASSED, SKIPPED))
        failed = len(self.against(suite, subject))
        beside = "" if subject == NATIVE.name else " that pass natively"
        return f"{len(cases):,} cases, {passed:,} pass, {skipped} skipped; {failed} fail{beside}"


def examine(base: Path, given: argparse.Namespace) -> dict[str, Any]:
    stand_apart(base / "home")
    suites: dict[str, Path] = {}
    for name, suite in SUITES.items():
        path: Path | None = getattr(given, name.replace("-", "_"))
        if path is None:
            continue
        if not suite.found(path):
            raise SystemExit(f"--{option(name)}: {path} is not {suite.what}")
        suites[name] = path.resolve()
    if not suites:
        raise SystemExit("name at least one suite; --help says which there are and where they come from")
    peers, absent = available(base / "probe", [subject for subject in SUBJECTS if subject.name in given.subjects])
    header = {
        "benchmark": "conformance",
        "machine": machine(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "file_system": file_system(base),
        "versions": versions(peers),
        "absent": absent,
    }
    print(f"{header['date']}, {header['machine']}, {header['file_system']}")
    for name, why in absent.items():
        print(f"left out: {name}: {why}")
    examination = Examination(base, given, suites)
    for subject in (NATIVE, *peers):
        examination.run(subject)
    return header | {
        "cases": examination.cases,
        "against": {
            name: {subject: examination.against(name, subject) for subject in found}
            for name, found in examination.cases.items()
        },
    }


def option(suite: str) -> str:
    return suite.replace("_", "-")


def versions(peers: list[Subject]) -> dict[str, str]:
    """What each program among ``peers`` says of its version, where it says that."""
    found: dict[str, str] = {}
    for peer in peers:
        if peer.name in ("bindfs", "fuse-overlayfs"):
            said = call([peer.name, "--version"], Path.cwd()).splitlines()
            found[peer.name] = next((line for line in said if line.startswith(peer.name)), said[0])
    return found


def main() -> None:
    if os.geteuid() != 0:
        raise SystemExit("only root can run these suites: they ask what several users may do")
    sources = "\n".join(f"    --{option(name)}: {suite.what}; {suite.source}" for name, suite in SUITES.items())
    parser = argparse.ArgumentParser(
        description=f"{__doc__}\n{sources}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, suite in SUITES.items():
        parser.add_argument(f"--{option(name)}", type=Path, metavar="PATH", help=suite.what)
    names = [subject.name for subject in SUBJECTS]
    parser.add_argument("--subjects", nargs="*", choices=names, default=names, help="beside the backing file system")
    parser.add_argument("--directory", type=Path, help="on the backing file system (default: a temporary one)")
    parser.add_argument("--jobs", type=int, default=4, help="programs of a suite at once (default: 4)")
    parser.add_argument("--seconds", type=int, default=5, help="that a stressor runs (default: 5)")
    parser.add_argument("--operations", type=int, default=10_000, help="of fsx in each case (default: 10000)")
    parser.add_argument("--json", type=Path, help="where the results go")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that nothing stays mounted
    base = Path(tempfile.mkdtemp(prefix="holdfast-conformance-", dir=given.directory)).resolve()
    base.chmod(0o755)
    try:
        results = examine(base, given)
    except Failed as error:
        raise SystemExit(f"given up: {error}") from error
    finally:
        call(["rm", "-rf", "--one-file-system", base], Path("/"))
    if given.json:
        given.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
