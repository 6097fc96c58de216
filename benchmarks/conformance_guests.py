"""Whether a directory that Holdfast serves to a virtual machine behaves as one that others serve to it: public suites, run
in the guest.

    python benchmarks/conformance_guests.py --image NAME --pjdfstest DIR --fsx FILE --git DIR [--subjects virtiofs …] [--only …]

A case counts against Holdfast that does not pass there and does so by the reference in the same kind of guest: QEMU's C
virtiofsd (``cache=auto``) for virtio-fs, diod for 9P, both without the right to make devices, as those are not made by
Holdfast either. By Holdfast a whole suite is one command of ``holdfast run
--isolation vm``; after it, ``undo --run`` and ``redo`` bring back every path exactly and ``verify`` finds nothing: these are
cases as well. The image is one of the home ($HOLDFAST_HOME), and has what the suites need:

    holdfast image build suites --kernel linux-image-amd64 --package perl --package libaio1 --package acl

As root, as the references need that. Without KVM pjdfstest takes about half an hour for a subject; `--share 5` takes every
fifth program. `--help` of ``conformance.py`` says where the suites come from. Programs that are linked statically need no
more packages in the image.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from conformance import aftermath, furnish
from conformance_suites import PASSED, SKIPPED, SUITES, Cases, Ground
from holdfast.processes.process_tree import become_subreaper
from holdfast.sandbox.channel import Channel
from holdfast.sandbox.images.store import ImageStore
from holdfast.sandbox.policy import NoNetwork
from holdfast.sandbox.vm.accelerator import choose_accelerator
from holdfast.sandbox.vm.machine import Machine
from holdfast.sandbox.vm.plan import BootPlan, GuestUser, MachinePlan, Share
from holdfast.testing.tree_state import photograph

_HERE = Path(__file__).resolve().parent
_VIRTIOFSD = Path("/usr/lib/qemu/virtiofsd")
_REFERENCES = {"virtiofs": "virtiofsd", "9p": "diod"}
_SUBJECTS = (*_REFERENCES.values(), *_REFERENCES)
_IN_THE_GUEST = "/var/suite"
_START_SECONDS = 400.0
_ATTACH = 104
_QUICKER = r"""
expect()
{
	e="${1}"
	shift
	r=`${fstest} $* 2>/dev/null`
	r="${r##*
}"
	if [ "${r}" = "${e}" ] || echo "${r}" | ${GREP} -Eq '^'${e}'$'; then
		echo "ok ${ntest}${todomsg:+ # TODO ${todomsg}}"
	elif [ -z "${todomsg}" ]; then
		echo "not ok ${ntest} - tried '$*', expected ${e}, got ${r}"
	else
		echo "not ok ${ntest} # TODO ${todomsg}"
	fi
	todomsg=""
	: $(( ntest += 1 ))
}
namegen()
{
	IFS=- read -r a b c d f </proc/sys/kernel/random/uuid
	echo "pjdfstest_$a$b$c$d$f"
}
namegen_len()
{
	name=""
	while [ ${#name} -lt $1 ]; do
		IFS=- read -r a b c d f </proc/sys/kernel/random/uuid
		name="${name}$a$b$c$d$f"
	done
	printf "%.${1}s" "${name}"
}
"""
"""Functions of pjdfstest's, which do the same and start fewer programs: that takes long in an emulated guest."""
_GIT = ("git*", "bin-wrappers", "templates", "t", "po", "perl", "GIT-*", "contrib/completion", "mergetools")
"""Of Git's sources, what its tests need."""


class GivenUp(Exception):
    """A suite has not come to its end; the text says why."""


# -- the references -----------------------------------------------------------------------------------------------------


def _relay(one: socket.socket, other: socket.socket) -> None:
    """Pass on what comes from one to the other, until it hangs up."""
    with suppress(OSError):
        while data := one.recv(1 << 16):
            other.sendall(data)
    other.close()


def _relay_vhost_user(one: socket.socket, other: socket.socket) -> None:
    """Pass on messages with the descriptors that belong to each."""
    with suppress(OSError):
        while True:
            head, fds, _, _ = socket.recv_fds(one, 12, 64)
            if not head:
                break
            head += one.recv(12 - len(head), socket.MSG_WAITALL)
            (size,) = struct.unpack_from("<I", head, 8)
            data = head + (one.recv(size, socket.MSG_WAITALL) if size else b"")
            sent = socket.send_fds(other, [data], fds)
            other.sendall(data[sent:])
            for fd in fds:
                os.close(fd)
    other.close()


def _relay_attaching(guest: socket.socket, server: socket.socket, name: bytes) -> None:
    """Pass on 9P from the guest to a server that wants to be told which directory is meant."""
    with guest.makefile("rb") as frames:
        while len(head := frames.read(7)) == 7:
            size, kind, _ = struct.unpack("<IBH", head)
            body = frames.read(size - len(head))
            if kind == _ATTACH:
                (length,) = struct.unpack_from("<H", body, 8)
                (old,) = struct.unpack_from("<H", body, 10 + length)
                body = body[: 10 + length] + struct.pack("<H", len(name)) + name + body[12 + length + old :]
                head = struct.pack("<I", len(head) + len(body)) + head[4:]
            server.sendall(head + body)
    server.close()


@contextmanager
def _served(kind: str, directory: Path, connection: socket.socket, base: Path) -> Iterator[None]:
    """Serve a directory to a machine by the reference for ``kind``."""
    with ExitStack() as closing:
        if kind == "9p":
            ours, its = socket.socketpair()
            words = [
                "setpriv",
                "--bounding-set=-mknod",
                "diod",
                "-f",
                "-n",
                "-L",
                "stderr",
                "-e",
                directory,
                "-r",
                str(its.fileno()),
            ]
            words += ["-w", str(its.fileno())]
        else:
            path = base / "virtiofsd.socket"
            words = [
                _VIRTIOFSD,
                f"--socket-path={path}",
                "-o",
                f"source={directory}",
                "-o",
                "cache=auto,xattr,modcaps=-mknod",
            ]
            words += ["--thread-pool-size=0"]
        log = closing.enter_context((base / "server.log").open("wb"))
        fds = [its.fileno()] if kind == "9p" else []
        process = subprocess.Popen(words, stdout=log, stderr=log, pass_fds=fds)
        closing.callback(process.wait)
        closing.callback(process.kill)
        if kind == "9p":
            its.close()
            ways = [(_relay_attaching, (connection, ours, os.fsencode(directory))), (_relay, (ours, connection))]
        else:
            while not path.exists():
                time.sleep(0.05)
            ours = socket.socket(socket.AF_UNIX)
            ours.connect(str(path))
            ways = [(_relay_vhost_user, (connection, ours)), (_relay_vhost_user, (ours, connection))]
        for function, given in ways:
            threading.Thread(target=function, args=given, daemon=True).start()
        yield


def _by_reference(kind: str, base: Path, work: Path, command: str, given: argparse.Namespace) -> str:
    image = ImageStore(os.fsencode(given.home)).find(given.image)
    boot = BootPlan(GuestUser("root", 0, 0, b"/root"))
    share = Share("work", bytes(work), kind=kind)  # pyright: ignore[reportArgumentType] - one of `_REFERENCES`
    plan = MachinePlan(image, given.memory << 20, 1, boot, NoNetwork(), bytes(base), shares=(share,))
    out: list[bytes] = []
    with (
        Machine.start(plan, choose_accelerator(os.fsencode(given.home), image)) as machine,
        _served(kind, work, machine.files[0].dup(), base),
    ):
        control = machine.control.dup()
        channel = Channel(control, control, start_seconds=_START_SECONDS)
        try:
            ended = channel.execute(1, command, cwd=bytes(work), on_output=lambda _, data: out.append(data))
        except Exception as error:
            raise GivenUp(f"{error}; {machine.failure()}") from error
        channel.close()
        machine.stop()
    said = b"".join(out).decode(errors="replace")
    if ended.exit_code:
        raise GivenUp(f"exit code {ended.exit_code}: {said[-1000:]}")
    return said


# -- a suite ------------------------------------------------------------------------------------------------------------


def _pack(path: Path, to: Path) -> str:
    """An archive with the suite and what starts it; returns where the suite will be in the guest."""

    def without_debris(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if member.name.endswith((".o", ".a", ".c", ".h")) else member

    with tarfile.open(to, "w") as archive:
        archive.add(_HERE / "conformance_suites.py", "conformance_suites.py")
        if path.is_file():
            archive.add(path, path.name)
        elif (path / "GIT-BUILD-OPTIONS").exists():
            for pattern in _GIT:
                for each in sorted(path.glob(pattern)):
                    archive.add(each, f"suite/{each.relative_to(path)}", filter=without_debris)
        else:
            archive.add(path, "suite", filter=without_debris)
            functions = ((path / "tests" / "misc.sh").read_text() + _QUICKER).encode()
            member = tarfile.TarInfo("suite/tests/misc.sh")
            member.size = len(functions)
            archive.addfile(member, io.BytesIO(functions))
    return f"{_IN_THE_GUEST}/{path.name if path.is_file() else 'suite'}"


def _run(subject: str, suite: str, path: Path, base: Path, given: argparse.Namespace) -> Cases:
    """The cases of one suite in one guest."""
    work = base / "work"
    work.mkdir(parents=True)
    base.chmod(0o755)
    furnish(work)
    there = _pack(path, work / "suite.tar")
    only = [name for name in given.only if name]
    ground = Ground(f"{work}/ground", None, f"{work}/aside", 1, given.seconds, given.operations, given.share, only)
    words = ["python3", "-P", f"{_IN_THE_GUEST}/conformance_suites.py", suite, there, json.dumps(ground._asdict())]
    words[1:2] = []  # (an older Python in the guest does not know it)
    command = (
        f"set -e; mkdir {_IN_THE_GUEST} aside ground; chmod 777 aside ground; umask 022;"
        f" tar -x --no-same-owner -f suite.tar -C {_IN_THE_GUEST};"
        # (What was built may look for itself where that was.)
        f" mkdir -p {shlex.quote(str(path.parent))}; ln -sfn {there} {shlex.quote(str(path))}; exec {shlex.join(words)}"
    )
    if subject not in _REFERENCES:
        kind = next(kind for kind, name in _REFERENCES.items() if name == subject)
        return json.loads(_by_reference(kind, base, work, command, given).splitlines()[-1])
    home = base / "home"
    home.mkdir(0o700)
    (home / "images").symlink_to(given.home / "images")
    (home / "config.toml").write_text(
        f'[vm]\nfilesystem = "{subject}"\nmode = "ephemeral"\nimage = "{given.image}"\nmemory = "{given.memory}MiB"\n'
        "[undo]\nmax_steps = 1000000\n"
    )
    os.environ["HOLDFAST_HOME"] = str(home)
    program = [sys.executable, "-m", "holdfast"]
    subprocess.run([*program, "init", "-q"], cwd=work, check=True)
    before = photograph(work)
    vm = [*program, "run", "--isolation", "vm", "--", "sh", "-c", command]
    done = subprocess.run(vm, cwd=work, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise GivenUp(f"exit code {done.returncode}: {done.stdout[-500:]} {done.stderr[-1000:]}")
    return json.loads(done.stdout.splitlines()[-1]) | aftermath(work, before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("pjdfstest", "fsx", "git"):
        parser.add_argument(f"--{name}", type=Path, metavar="PATH", help=SUITES[name].what)
    parser.add_argument("--subjects", nargs="*", choices=_SUBJECTS, default=_SUBJECTS)
    parser.add_argument("--image", default="default", help="of the home")
    parser.add_argument("--memory", type=int, default=512, help="of a guest, in MiB (default: 512)")
    parser.add_argument("--only", nargs="*", default=[], help="of each suite: names of scripts or cases")
    parser.add_argument("--share", type=int, default=1, help="every how manieth program of a suite is run (default: 1)")
    parser.add_argument("--operations", type=int, default=10_000, help="of fsx in each case (default: 10000)")
    parser.add_argument("--directory", type=Path, help="where the directories are made (default: a temporary one)")
    parser.add_argument("--json", type=Path, help="where the results go")
    given = parser.parse_args()
    given.seconds = 5
    given.home = Path(os.environ.get("HOLDFAST_HOME", Path.home() / ".holdfast")).absolute()
    suites = {name: getattr(given, name).absolute() for name in ("pjdfstest", "fsx", "git") if getattr(given, name)}
    for name, path in suites.items():
        if not SUITES[name].found(path):
            sys.exit(f"--{name}: {path} is not {SUITES[name].what}")
    if os.geteuid():
        sys.exit("only root can run the references")
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    become_subreaper()
    top = Path(tempfile.mkdtemp(prefix="holdfast-guests-", dir=given.directory)).resolve()
    top.chmod(0o755)
    results: dict[str, dict[str, Cases]] = {name: {} for name in suites}
    try:
        for suite, path in suites.items():
            for subject in given.subjects:
                began = time.monotonic()
                try:
                    cases = _run(subject, suite, path, top / f"{suite}-{subject}", given)
                except GivenUp as error:
                    cases = {"to its end": str(error)}
                results[suite][subject] = cases
                _say(suite, subject, results[suite], time.monotonic() - began)
    finally:
        shutil.rmtree(top, ignore_errors=True)
        if given.json:
            given.json.write_text(json.dumps(results, indent=1))


def _say(suite: str, subject: str, cases: dict[str, Cases], seconds: float) -> None:
    own = cases[subject]
    reference = cases.get(_REFERENCES.get(subject, ""), {})
    passed, skipped = (sum(words == kind for words in own.values()) for kind in (PASSED, SKIPPED))
    failed = {case: words for case, words in own.items() if words not in (PASSED, SKIPPED)}
    against = {case: words for case, words in failed.items() if reference.get(case, PASSED) == PASSED}
    print(f"{subject}: {suite}: {len(own):,} cases, {passed:,} pass, {skipped} skipped, {len(failed)} fail,", end="")
    print(f" {len(against)} of them not by the reference; {seconds:.0f} s")
    for case, words in (failed if subject not in _REFERENCES else against).items():
        print(f"    {case}: {words}", flush=True)


if __name__ == "__main__":
    main()
