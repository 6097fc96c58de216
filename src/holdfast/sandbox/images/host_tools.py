"""The programs of this host that images and machines are made with, and what to install where they are missing."""

from __future__ import annotations

import os
import platform
import pwd
import shutil
import struct
from typing import TYPE_CHECKING, Final

from holdfast.model.errors import HoldfastError, UnsupportedError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.message_text import listed
from holdfast.model.paths import display
from holdfast.processes.child import Limits, run, run_contained
from holdfast.processes.child_environment import inherited_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

PACKAGE_OF: Final = {
    "apt-config": "apt",
    "apt-get": "apt",
    "apt-cache": "apt",
    "dpkg-deb": "dpkg",
    "mmdebstrap": "mmdebstrap",
    "mksquashfs": "squashfs-tools",
    "busybox": "busybox-static",
    "newuidmap": "uidmap",
    "unshare": "util-linux",
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-system-aarch64": "qemu-system-arm",
    "qemu-img": "qemu-utils",
    "mke2fs": "e2fsprogs",
}
"""By program: the Debian package that has it."""

_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_BEYOND_PATH: Final = ("/usr/local/sbin", "/usr/sbin", "/sbin")
"""Where a user's PATH may not look."""
_PT_INTERP: Final = 3
_FEW_ERRORS: Final = 3


def architecture() -> str:
    """The architecture of this host, as Debian calls it. Raises `UnsupportedError` where no machine is made for it."""
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        raise UnsupportedError(f"there are no images for {machine}: only for {listed(sorted(_ARCHITECTURES))}")
    return _ARCHITECTURES[machine]


class Tools(NamedTuple):
    """Programs by name, with the environment in which they are run."""

    paths: Mapping[str, str]
    environment: Mapping[str, str]

    def run(
        self,
        words: Sequence[str],
        *,
        seconds: float,
        stdin: bytes | int = b"",
        output: int = 1 << 20,
        cwd: bytes | None = None,
    ) -> bytes:
        """Run a program to its end; its output. Raises `HoldfastError` with its last lines on failure."""
        try:
            ended = run(
                [self.paths[words[0]], *words[1:]],
                Limits(seconds, output, 1 << 16),
                stdin=stdin,
                environment=self.environment,
                cwd=cwd,
            )
        except OSError as error:
            raise HoldfastError(f"{words[0]} cannot be started: {error.strerror}", code="image_tool") from error
        if ended.code or ended.why:
            raise tool_failed(words[0], ended.exit_code, ended.why, ended.errors or ended.output)
        return ended.output

    def run_contained(
        self,
        words: Sequence[str],
        *,
        seconds: float,
        follow: Callable[[str], None],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Run a program that itself runs the user's commands; ``follow`` receives each line of output. All its
        processes end with it. Raises `HoldfastError` as `run`.
        """
        rest = bytearray()

        def take(data: bytes) -> None:
            rest.extend(data)
            *lines, last = rest.split(b"\n")
            rest[:] = last[-8192:]
            for line in lines:
                follow(line.decode("utf-8", "replace").rstrip())

        ended = run_contained(
            [self.paths[words[0]], *words[1:]],
            Limits(seconds, 0, 1 << 16),
            cwd=b"/",
            environment={**self.environment, **(environment or {})},
            grace=10,
            follow_errors=take,
        )
        if ended.code or ended.why:
            raise tool_failed(words[0], ended.exit_code, ended.why, ended.errors)


def tool_failed(name: str, code: int, why: str, said: bytes) -> HoldfastError:
    """The error for a program that failed: with its own errors, or with the last line that it has said."""
    how = {"time": "took too long", "output": "printed too much", "stopped": "was stopped"}.get(why)
    lines = [line.strip() for line in said.decode("utf-8", "replace").splitlines() if line.strip()]
    # apt, dpkg and mmdebstrap mark errors in this way.
    errors = [line.removeprefix("E: ") for line in lines if line.startswith("E: ")][:_FEW_ERRORS] or lines[-1:]
    reason = "; ".join([how or f"exit {code}", *errors])
    return HoldfastError(f"{name} failed: {reason}", code="image_tool")


def find_tools(*names: str, purpose: str = "images are made with", environ: Mapping[str, str] | None = None) -> Tools:
    """The programs ``names``. Raises `UnsupportedError`, which names the packages to install, if any is missing; the
    message begins with the ``purpose``.

    ``busybox`` must be statically linked; any other counts as missing.
    """
    environ = os.environ if environ is None else environ
    path = os.pathsep.join((environ.get("PATH", os.defpath), *_BEYOND_PATH))
    found = {name: where for name in names if (where := shutil.which(name, path=path)) is not None}
    if "busybox" in found and not _is_static(found["busybox"]):
        del found["busybox"]
    missing = [name for name in names if name not in found]
    if missing:
        packages = " ".join(dict.fromkeys(PACKAGE_OF[name] for name in missing))
        raise UnsupportedError(
            f"{purpose} {listed(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed",
            hint=f"install the package{'' if ' ' not in packages else 's'}: sudo apt install {packages}",
            code="tools_missing",
        )
    # A fixed language, as some output is parsed; and no questions.
    given = {**inherited_environment(environ), "PATH": path, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
    return Tools(found, given)


def check_user_namespaces(uid: int, *, directory: str = "/etc") -> None:
    """Raise `UnsupportedError` if a user has no range of ids for its user namespaces, as mmdebstrap looks for it
    (subuid(5)). A kernel that allows no such namespaces is found out by mmdebstrap.
    """
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = str(uid)
    for name in ("subuid", "subgid"):
        try:
            with open(os.path.join(directory, name), encoding="utf-8", errors="replace") as lines:
                found = any(line.partition(":")[0] in (user, str(uid)) for line in lines)
        except OSError:
            found = False
        if not found:
            raise UnsupportedError(
                f"user {user} has no ids for user namespaces: there are none in /etc/{name}",
                hint=f"sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {user}, or build as root",
                code="no_user_namespaces",
            )


def _is_static(path: str) -> bool:
    """True if the ELF file needs no loader."""
    try:
        with open(path, "rb") as stream:
            head = stream.read(4096)
    except OSError as error:
        raise UnsupportedError(f"{display(os.fsencode(path))} cannot be read: {error.strerror}") from error
    if head[:6] != b"\x7fELF\x02\x01":
        return False
    (offset,) = struct.unpack_from("<Q", head, 0x20)
    size, count = struct.unpack_from("<HH", head, 0x36)
    starts = range(offset, min(offset + size * count, len(head) - 4), size or 1)
    return all(int.from_bytes(head[start : start + 4], "little") != _PT_INTERP for start in starts)
