"""What virtio-fs costs: the same work of one guest in directories that are served by Holdfast, recorded, and by QEMU's
C virtiofsd (``cache=auto``), in turns.

    python benchmarks/virtiofs.py [--kernel DEB] [--turns 7] [--against CHECKOUT] [--megabytes 256] [--directory DIR]

The kernel is a package of Debian's (``apt-get download linux-image-6.1.0-49-cloud-amd64``, say), which is unpacked and
not installed; by default the newest that apt has kept. The guest is ``virtiofs_guest.c``. QEMU emulates, if it is not
told otherwise (``--accelerator kvm``). As root, as virtiofsd needs that. Ratios are of medians: of time in the guest, and
of processor time of who serves. ``--against`` has the modules of another checkout take part.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_MODULES = ("virtio_pci", "virtiofs")
_VIRTIOFSD = Path("/usr/lib/qemu/virtiofsd")
_PACKAGES = Path("/var/cache/apt/archives")
_DIRECTORIES, _FILES, _BYTES = 20, 50, 3000
_MUST = 1.5


def main() -> None:
    """Measure, or serve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", type=Path, help="a Debian package of a kernel")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--against", type=Path, help="another checkout")
    parser.add_argument("--megabytes", type=int, default=256, help="memory of the guest")
    parser.add_argument("--accelerator", default="tcg,thread=multi")
    parser.add_argument("--directory", type=Path, help="where the directories are made that are served")
    parser.add_argument("--serve", nargs=2, metavar=("SOCKET", "DIRECTORY"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        _serve(*map(Path, options.serve))
        return
    kernel = options.kernel or _newest_package()
    missing = _missing(kernel)
    if missing or kernel is None:
        sys.exit("missing: " + "; ".join(missing))
    with tempfile.TemporaryDirectory(dir=options.directory) as top:
        _measure(Path(top), kernel, options)


def _newest_package() -> Path | None:
    found = [path for path in _PACKAGES.glob("linux-image-[0-9]*cloud*.deb") if "-unsigned" not in path.name]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def _missing(kernel: Path | None) -> list[str]:
    missing = [f"the command {name}" for name in ("qemu-system-x86_64", "cc", "dpkg-deb") if not shutil.which(name)]
    if not _VIRTIOFSD.exists():
        missing.append(f"{_VIRTIOFSD} (in Debian 12 a part of qemu-system-common)")
    if kernel is None or not kernel.exists():
        missing.append("a kernel: apt-get download linux-image-VERSION-cloud-amd64, and --kernel")
    if os.geteuid():
        missing.append("root")
    return missing


# -- the machine --------------------------------------------------------------------------------------------------------


def _boot_files(top: Path, package: Path) -> tuple[Path, Path]:
    """The kernel, and an initrd with the guest's program and its modules."""
    unpacked = top / "kernel"
    subprocess.run(["dpkg-deb", "-x", package, unpacked], check=True)
    program = top / "init"
    subprocess.run(["cc", "-O2", "-static", "-o", program, _HERE / "virtiofs_guest.c"], check=True)
    files = [("init", program), *((f"mod/{at}.ko", path) for at, path in enumerate(_modules(unpacked)))]
    initrd = top / "initrd"
    with initrd.open("wb") as archive:
        for name in ("dev", "mod"):
            archive.write(_archived(name, b"", 0o40755))
        archive.write(_archived("dev/console", b"", 0o20600, (5, 1)))
        for name, path in files:
            archive.write(_archived(name, path.read_bytes(), 0o100755))
        archive.write(_archived("TRAILER!!!", b"", 0))
    return next(unpacked.glob("boot/vmlinuz-*")), initrd


def _modules(unpacked: Path) -> list[Path]:
    """In the order in which they are loaded; what is not there is part of the kernel."""
    paths = {path.stem.replace("-", "_"): path for path in unpacked.glob("lib/modules/*/kernel/**/*.ko")}
    order: list[Path] = []

    def add(name: str) -> None:
        path = paths.pop(name.replace("-", "_"), None)
        if path is not None:
            found = re.search(rb"\0depends=([^\0]*)\0", path.read_bytes())
            for other in found[1].decode().split(",") if found else ():
                add(other)
            order.append(path)

    for name in _MODULES:
        add(name)
    return order


def _archived(name: str, data: bytes, mode: int, device: tuple[int, int] = (0, 0)) -> bytes:
    """A file of a cpio archive, as the kernel unpacks them (``newc``)."""
    fields = (0, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(name) + 1, 0)
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
    return head + bytes(-len(head) % 4) + data + bytes(-len(data) % 4)


def _machine(kernel: Path, initrd: Path, sockets: dict[str, Path], options: argparse.Namespace) -> list[str]:
    devices: list[str] = []
    for tag, path in sockets.items():
        devices += ["-chardev", f"socket,id={tag},path={path}", "-device", f"vhost-user-fs-pci,chardev={tag},tag={tag}"]
    return [
        *("qemu-system-x86_64", "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"),
        *("-machine", "q35,memory-backend=mem", "-accel", options.accelerator, "-cpu", "max"),
        *("-object", f"memory-backend-memfd,id=mem,size={options.megabytes}M,share=on", "-m", str(options.megabytes)),
        *devices,
        *("-serial", "stdio", "-kernel", str(kernel), "-initrd", str(initrd), "-append"),
        f"console=ttyS0 quiet panic=-1 mitigations=off TAGS={','.join(sockets)} TURNS={options.turns}",
    ]


# -- who serves ---------------------------------------------------------------------------------------------------------


def _make_tree(directory: Path) -> None:
    for number in range(_DIRECTORIES):
        inner = directory / "tree" / f"d{number}"
        inner.mkdir(parents=True)
        for file in range(_FILES):
            (inner / f"f{file}").write_bytes(os.urandom(_BYTES))


def _servers(top: Path, against: Path | None) -> dict[str, tuple[list[str], dict[str, str]]]:
    """What serves each tag: its command, and what it has in its environment."""
    shared = {tag: top / tag for tag in ("virtiofsd", "holdfast", "before")}
    for directory in shared.values():
        _make_tree(directory / "files")
    reference = shared["virtiofsd"]
    servers: dict[str, tuple[list[str], dict[str, str]]] = {
        "virtiofsd": (
            [str(_VIRTIOFSD), f"--socket-path={reference / 'socket'}"]
            + ["-o", f"source={reference / 'files'}", "-o", "cache=auto", "--thread-pool-size=0"],
            {},
        )
    }
    checkouts = {"holdfast": _HERE.parent} | ({"before": against} if against else {})
    for tag, checkout in checkouts.items():
        command = [sys.executable, __file__, "--serve", str(shared[tag] / "socket"), str(shared[tag])]
        servers[tag] = command, {"PYTHONPATH": str(checkout.resolve() / "src")}
    return servers


def _serve(path: Path, directory: Path) -> None:
    """Serve ``files`` in a directory, recorded in an undo log beside it, until the machine hangs up."""
    from holdfast.bridge.fuse.live_caches import LiveCaches
    from holdfast.bridge.fuse.served_file_system import ServedFileSystem
    from holdfast.bridge.server.loop import FuseServer
    from holdfast.bridge.virtio.vhost_user_backend import VhostUserBackend
    from holdfast.model.clock import SystemClock
    from holdfast.testing.bridged import SingleStep
    from holdfast.undo.local_service.undo_service import LocalUndoService
    from holdfast.undo.log import UndoLog

    root_fd = os.open(directory / "files", os.O_RDONLY | os.O_DIRECTORY)
    log = UndoLog(bytes(directory / "log"), root_fd, SystemClock())
    step = LocalUndoService(log, intercepts=True).open("command", command=(b"guest",))
    host = SingleStep(log, root_fd, step)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(1)
        device = VhostUserBackend(listener.accept()[0])
    while (transport := device.accept()) is not None:
        caches = LiveCaches(host, log.preimages, transport)
        served = ServedFileSystem(caches.directory, caches)
        server = FuseServer(transport, served)
        server.start()
        server.wait()
        server.stop()
        served.close()
        caches.close()
    device.close()


# -- what is measured ---------------------------------------------------------------------------------------------------


def _processor_seconds(pid: int) -> float:
    """What all threads of a process have used (clock_getcpuclockid(3))."""
    return time.clock_gettime(~pid << 3 | 2)


def _measure(top: Path, package: Path, options: argparse.Namespace) -> None:
    kernel, initrd = _boot_files(top, package)
    servers = _servers(top, options.against)
    sockets = {tag: top / tag / "socket" for tag in servers}
    started: dict[str, subprocess.Popen[bytes]] = {}
    taken: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    used: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    load = os.getloadavg()[0]
    try:
        for tag, (command, environment) in servers.items():
            log = (top / f"{tag}.log").open("wb")
            started[tag] = subprocess.Popen(command, env=os.environ | environment, stderr=log, stdout=log)
        pids = {tag: process.pid for tag, process in started.items()}
        while not all(path.exists() for path in sockets.values()):
            time.sleep(0.05)
        command = _machine(kernel, initrd, sockets, options)
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as machine:
            assert machine.stdout is not None
            serving, before = 0, 0.0
            for line in machine.stdout:
                match line.split():
                    case ["begin", tag, _]:
                        serving = _child(pids[tag]) or pids[tag]  # (virtiofsd serves in a process of its own)
                        before = _processor_seconds(serving)
                    case ["end", tag, row, milliseconds]:
                        used[row][tag].append((_processor_seconds(serving) - before) * 1000)
                        taken[row][tag].append(float(milliseconds))
                    case ["fail", *what]:
                        sys.exit("the guest: " + " ".join(what))
                    case _:
                        pass
        for process in started.values():
            process.wait(30)
    finally:
        for process in started.values():
            process.kill()
    _report(taken, used, load)


def _child(pid: int) -> int | None:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else None


def _report(taken: dict[str, dict[str, list[float]]], used: dict[str, dict[str, list[float]]], load: float) -> None:
    print(f"{os.uname().machine}, {os.cpu_count()} cores, load before and after: {load:.1f}, {os.getloadavg()[0]:.1f}")
    tags = [tag for tag in next(iter(taken.values())) if tag != "virtiofsd"]
    print("| row | virtiofsd | " + " | ".join(f"{tag} | ratio | lowest | CPU | " for tag in sorted(tags)))
    for row, times in taken.items():
        reference, processor = times["virtiofsd"], used[row]["virtiofsd"]
        cells = [f"{row:9} | {statistics.median(reference):6.1f} ms"]
        for tag in sorted(tags):
            ratio = statistics.median(times[tag]) / statistics.median(reference)
            lowest = min(times[tag]) / min(reference)
            cost = statistics.median(used[row][tag])
            verdict = "" if ratio <= _MUST else " missed"
            cells.append(
                f"{statistics.median(times[tag]):6.1f} ms | **{ratio:.2f}**{verdict} | {lowest:.2f} | "
                f"{cost:.0f} ms, {cost / statistics.median(processor):.1f} ×"
            )
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
