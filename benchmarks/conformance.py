"""Whether what changes files behaves there as natively: public suites, on a file system, over mounts of it, and by runs.

    python benchmarks/conformance.py --pjdfstest DIR --cpython FILE … [--subjects run …] [--directory DIR] [--json FILE]

A case counts against a subject that does not pass there and does so natively. The mounts are Holdfast's own bridge and the FUSE
file systems that are on the path; the backing file system is that of ``--directory``. By a run, a whole suite is one command
of ``holdfast run``, of ``--one-step``, of ``--bridge fuse`` or of ``--isolation namespace`` (of the last two, a third of each suite;
without the suites that need root's capabilities, in a namespace). After it, these are cases as well: ``undo --run`` and ``redo``, without
``--force``, bring back every path exactly (type, mode, owner, mtime, attributes, content, links; ignored or not), ``verify``
finds nothing, and no process and no mount is left. The suites come from elsewhere, built as they themselves say, and each
that is named is run:
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from compare import machine, program
from conformance_suites import PASSED, SKIPPED, SUITES, Cases, Ground
from holdfast.processes.process_tree import become_subreaper, descendants, reap_orphans
from holdfast.testing.tree_state import PathState, differences, photograph
from run import file_system, stand_apart
from run_subjects import BEHIND, BRIDGE, HOLDFAST, NATIVE, PEERS, Failed, Subject, available, call

MOUNTS = (BRIDGE, *(peer for peer in PEERS if peer.name != "overlayfs"))
NAMESPACE, FUSE = "run --isolation namespace", "run --bridge fuse"
RUNS = (
    HOLDFAST._replace(name="run"),
    HOLDFAST._replace(name="run --one-step", prefix=(*HOLDFAST.prefix[:-1], "--one-step", "--")),
    HOLDFAST._replace(name=FUSE, prefix=(*HOLDFAST.prefix[:-1], "--bridge", "fuse", "--")),
    HOLDFAST._replace(
        name=NAMESPACE,
        prefix=(*HOLDFAST.prefix[:-1], "--isolation", "namespace", "--tmp", "shared", "--writable", "{aside}", "--"),
    ),
)
SUBJECTS = (*MOUNTS, *RUNS)
SHARES = {FUSE: 3, NAMESPACE: 3}
SUITES_ALONE = Path(__file__).with_name("conformance_suites.py")
PATIENCE = 60
"""Seconds that the processes of a run may take to end after it."""


Photograph = dict[bytes, PathState]


class Examination:
    """The suites, the subjects and what came of them."""

    def __init__(self, base: Path, given: argparse.Namespace, suites: dict[str, Path]) -> None:
        self.base, self.given, self.suites = base, given, suites
        self.cases: dict[str, dict[str, Cases]] = {name: {} for name in suites}
        self.spots = 0

    @contextmanager
    def place(self, subject: Subject) -> Iterator[tuple[Path, Ground]]:
        """A new place of ``subject``, and the ground for a suite there."""
        self.spots += 1
        base = self.base / f"{self.spots:03d}-{subject.name.replace(' ', '-')}"
        for name in ("start", "aside"):
            (base / name).mkdir(parents=True)
            (base / name).chmod(0o777)
        if subject in RUNS:
            furnish(base / "start")
        with subject.place(base, base / "start") as work:
            behind = str(base / BEHIND) if (base / BEHIND).is_dir() else None
            given, share = self.given, SHARES.get(subject.name, 1)
            of = (given.jobs, given.seconds, given.operations, share, given.only)
            yield work, Ground(str(work), behind, str(base / "aside"), *of)

    def run(self, subject: Subject) -> None:
        for name, path in self.suites.items():
            if subject.name == NAMESPACE and SUITES[name].privileged:
                continue
            began = time.monotonic()
            cases = self.cases[name].setdefault(subject.name, {})
            try:
                with self.place(subject) as (work, ground):
                    before = photograph(work) if subject in RUNS else {}
                    cases |= suite_alone(subject, work, name, path, ground)
                    if subject in RUNS:
                        cases |= aftermath(work, before)
            except Failed as error:
                cases["to its end"] = str(error)
            print(f"{subject.name}: {name}: {self.summary(name, subject.name)}, {time.monotonic() - began:.0f} s")
            for case, words in self.against(name, subject.name).items():
                print(f"    {case}: {words}", flush=True)

    def against(self, suite: str, subject: str) -> Cases:
        """The cases that count against ``subject``: those that pass natively or are not there, and do not pass there."""
        native, own = self.cases[suite][NATIVE.name], self.cases[suite][subject]
        if subject == NATIVE.name:
            return {case: words for case, words in native.items() if words not in (PASSED, SKIPPED)}
        programs = {case.split()[0] for case in own}
        every = own | {case: "" for case in native if SHARES.get(subject, 1) == 1 or case.split()[0] in programs}
        found = {case: own.get(case, "not run") for case in every if native.get(case, PASSED) == PASSED}
        return {case: words for case, words in found.items() if words != PASSED}

    def summary(self, suite: str, subject: str) -> str:
        cases = self.cases[suite][subject].values()
        passed, skipped = (sum(words == kind for words in cases) for kind in (PASSED, SKIPPED))
        failed = len(self.against(suite, subject))
        beside = "" if subject == NATIVE.name else " that pass natively"
        return f"{len(cases):,} cases, {passed:,} pass, {skipped} skipped; {failed} fail{beside}"


def suite_alone(subject: Subject, work: Path, suite: str, path: Path, ground: Ground) -> Cases:
    """Run a whole suite as one command of ``subject``."""
    prefix = [word.format(aside=ground.aside) for word in subject.prefix]
    words = [*prefix, sys.executable, "-P", SUITES_ALONE, suite, path, json.dumps(ground._asdict())]
    done = subprocess.run(words, cwd=work, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(f"exit code {done.returncode}: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout.splitlines()[-1])


def furnish(top: Path) -> None:
    """What a suite finds beside its own files, and leaves: captured, ignored, linked."""
    (top / "kept").mkdir()
    for name in (".gitignore", "kept/file", "kept/file.ignored"):
        (top / name).write_text("*.ignored\n")
    os.link(top / "kept" / "file", top / "kept" / "other-name")
    (top / "kept" / "link").symlink_to("file")


def aftermath(work: Path, before: Photograph) -> Cases:
    """What is to be said after a run that began with ``before``: cases."""
    found: Cases = {}
    after = photograph(work)
    for words, then in ((["undo", "--run"], before), (["redo"], after), (["verify"], after)):
        try:
            call([program(), *words], work)
            lines = differences(then, photograph(work))
            said = f"{len(lines)} paths differ: {'; '.join(lines[:5])}" if lines else PASSED
        except Failed as error:
            said = str(error)
        found[f"{' '.join(words)}, exactly"] = said
    until = time.monotonic() + PATIENCE
    while (left := descendants(os.getpid())) and time.monotonic() < until:
        reap_orphans(())
        time.sleep(0.1)
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    mounts = [at for at in mounts if Path(at).is_relative_to(work.parent)]
    shown = [Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace") for pid in left]
    found["nothing is left"] = f"mounts {mounts}, processes {shown}" if left or mounts else PASSED
    return found


def examine(base: Path, given: argparse.Namespace) -> dict[str, Any]:
    stand_apart(base / "home")
    suites: dict[str, Path] = {}
    for name, suite in SUITES.items():
        path: Path | None = getattr(given, name.replace("-", "_"))
        if path is None:
            continue
        if not suite.found(path):
            raise SystemExit(f"--{option(name)}: {path} is not {suite.what}")
        if suite.privileged and os.geteuid() != 0:
            raise SystemExit(f"--{option(name)}: only root can run it, as it asks what several users may do")
        suites[name] = path.absolute()  # (A link may be what makes a Python of an environment.)
    if not suites:
        raise SystemExit("name at least one suite; --help says which there are and where they come from")
    become_subreaper()
    wanted = [subject for subject in SUBJECTS if subject.name in given.subjects]
    peers, absent = available(base / "probe", wanted)
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
    sources = "\n".join(f"    --{option(name)}: {suite.what}; {suite.source}" for name, suite in SUITES.items())
    parser = argparse.ArgumentParser(
        description=f"{__doc__}\n{sources}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, suite in SUITES.items():
        parser.add_argument(f"--{option(name)}", type=Path, metavar="PATH", help=suite.what)
    names = [subject.name for subject in SUBJECTS]
    parser.add_argument("--subjects", nargs="*", choices=names, default=names, help="beside the backing file system")
    parser.add_argument("--only", nargs="*", default=[], help="of each suite: names of scripts, modules or stressors")
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
