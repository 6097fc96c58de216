"""Building an image from Debian's packages: a root file system by mmdebstrap, and the parts of a kernel.

It installs nothing on this host, and neither uses nor changes the host's lists of packages: apt gets directories of its
own, in the directory of the build.
"""

from __future__ import annotations

import os
import re
import shlex
from typing import TYPE_CHECKING, Final

from holdfast.model.errors import HoldfastError, NotFoundError, UnsupportedError, UsageError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.message_text import listed, plural, size, visible
from holdfast.sandbox.images.apt_sources import choose_sources, host_codename, proxies, read_host_sources
from holdfast.sandbox.images.host_tools import Tools, architecture, check_user_namespaces, find_tools
from holdfast.sandbox.images.initrd import NEEDED, WANTED, boot_key, build_initrd
from holdfast.sandbox.images.kernel_image import bootable
from holdfast.sandbox.images.kernel_modules import choose_modules

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.sandbox.images.apt_sources import Source

    Progress = Callable[[str], None]
    """Gets a line about what is done now."""

DEFAULT_PACKAGES: Final = ("python3", "git", "ca-certificates", "procps", "iproute2", "sudo")
"""The packages of every image in addition to Debian's smallest set."""
KERNELS: Final = ("linux-image-cloud-{architecture}", "linux-image-virtual", "linux-image-{architecture}")
"""The packages of kernels, best first: Debian's for machines, Ubuntu's for them, and Debian's for any hardware."""

_PACKAGE: Final = re.compile(r"[a-z0-9][a-z0-9+.-]+(:[a-z0-9]+)?(=[A-Za-z0-9.+:~-]+)?\Z")
_SUITE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*\Z")
_MIRROR: Final = re.compile(r"(https?|file|ftp|tor\+https?)://?[^\s\"']+\Z")
_LEFT_OUT: Final = (
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/locale/*/LC_MESSAGES/*",
)
_UPDATE_SECONDS: Final = 600
_FETCH_SECONDS: Final = 3600
_BUILD_SECONDS: Final = 7200
_PACK_SECONDS: Final = 3600


class Recipe(NamedTuple):
    """The specification of an image. Checked by `check_recipe`."""

    suite: str = ""
    """The release, such as Debian's ``bookworm``; empty: this host's."""
    mirror: str = ""
    """Where its packages come from; empty: where this host's apt gets them."""
    packages: tuple[str, ...] = ()
    """In addition to `DEFAULT_PACKAGES`."""
    commands: tuple[str, ...] = ()
    """For a shell, which runs them as root in the new root file system, once all packages are installed."""
    kernel: str = ""
    """The kernel's package; empty: the first of `KERNELS` that there is."""


def check_recipe(recipe: Recipe) -> None:
    """Raise `UsageError` for an invalid recipe: its values become parts of command lines, and of apt's files."""
    for package in (*recipe.packages, *((recipe.kernel,) if recipe.kernel else ())):
        if not _PACKAGE.match(package):
            raise UsageError(f"{visible(package)!r} is no name of a Debian package")
    if recipe.suite and not _SUITE.match(recipe.suite):
        raise UsageError(f"{visible(recipe.suite)!r} is no name of a release")
    if recipe.mirror and not _MIRROR.match(recipe.mirror):
        raise UsageError(f"{visible(recipe.mirror)!r} is no mirror: it begins with http:// or https://")
    for command in recipe.commands:
        if not command.strip() or "\0" in command:
            raise UsageError("a command to run in the image is empty, or holds a NUL")


class Kernel(NamedTuple):
    """The parts of an image that do not depend on its root file system."""

    release: str
    """As ``uname -r`` says it."""
    package: str
    """``NAME=VERSION``."""
    boot: str
    """See `boot_key`."""
    kernel: bytes
    """The path of the file that a machine is started with."""
    initrd: bytes
    modules: tuple[str, ...]
    """The modules that the initrd loads."""


class KernelPackages(NamedTuple):
    """A kernel that can be fetched."""

    names: tuple[str, ...]
    """Of its packages: that of the kernel itself, and that of its modules where they are apart."""
    version: str
    bytes: int
    """The size of the download."""
    boot: str

    @property
    def package(self) -> str:
        """``NAME=VERSION``."""
        return f"{self.names[0]}={self.version}"


class DebianBuilder:
    """Builds in one directory, which must exist and be empty, and be deleted afterwards."""

    def __init__(
        self, work: bytes, recipe: Recipe, progress: Progress, *, tools: Tools, sources: Sequence[Source]
    ) -> None:
        """``work`` is the absolute path of the directory."""
        self._work = work
        self._recipe = recipe
        self._progress = progress
        self._tools = tools
        self.sources = tuple(sources)
        self._architecture = architecture()
        self._updated = False
        self._running = ""
        """Which of the recipe's commands runs, or was the last."""
        self._last_line = ""

    @classmethod
    def on_this_host(
        cls, work: bytes, recipe: Recipe, progress: Progress, *, kernel_only: bool = False
    ) -> DebianBuilder:
        """The builder for ``recipe`` with this host's tools. Raises `UnsupportedError`, with the packages to install,
        and `NotFoundError` if no package sources are known.
        """
        check_recipe(recipe)
        names = ["apt-config", "apt-get", "apt-cache", "dpkg-deb", "busybox"]
        if not kernel_only:
            names += ["mmdebstrap", "mksquashfs", "newuidmap" if os.geteuid() else "unshare"]
        tools = find_tools(*names)
        if os.geteuid() and not kernel_only:
            check_user_namespaces(os.geteuid())
        settings = tools.run(["apt-config", "dump"], seconds=60).decode("utf-8", "replace")
        tools = tools._replace(environment={**tools.environment, **proxies(settings)})
        sources = choose_sources(read_host_sources(), _codename(), suite=recipe.suite, mirror=recipe.mirror)
        return cls(work, recipe, progress, tools=tools, sources=sources)

    @property
    def packages(self) -> tuple[str, ...]:
        """The requested packages, without their dependencies."""
        return tuple(dict.fromkeys((*DEFAULT_PACKAGES, *self._recipe.packages)))

    # -- the kernel -----------------------------------------------------------------------------------------------

    def find_kernel(self) -> KernelPackages:
        """The available kernel. Raises `NotFoundError` if there is none, `HoldfastError` if apt fails."""
        self._update()
        candidates = [self._recipe.kernel] if self._recipe.kernel else _kernel_names(self._architecture)
        for name in candidates:
            found = self._kernel_behind(name)
            if found:
                return self._described(found)
        raise NotFoundError(
            f"there is no package {listed(candidates)} in {self._where()}", hint="name one with --kernel"
        )

    def build_kernel(self, found: KernelPackages) -> Kernel:
        """Fetch a kernel and make the parts of an image of it."""
        self._progress(f"Fetching the kernel {found.package} ({size(found.bytes)})")
        fetched, unpacked = self._directory(b"kernel-packages"), self._directory(b"kernel")
        self._apt("apt-get", "download", *found.names, seconds=_FETCH_SECONDS, cwd=fetched)
        for name in sorted(os.listdir(fetched)):
            path = os.fsdecode(os.path.join(fetched, name))
            self._tools.run(["dpkg-deb", "-x", path, os.fsdecode(unpacked)], seconds=600)
        release, packed, tree = _parts_of_kernel(unpacked)
        modules = choose_modules(tree, NEEDED, WANTED)
        with open(packed, "rb") as stream:
            kernel = bootable(stream.read())
        return Kernel(
            release,
            found.package,
            found.boot,
            self._write(b"kernel.image", kernel),
            self._write(b"initrd.image", build_initrd(self._busybox(), modules)),
            tuple(one.name for one in modules),
        )

    def _kernel_behind(self, name: str) -> list[str]:
        """The packages of a kernel and its modules; none if there is no package ``name``.

        A package without a version in its name only depends on the newest, and some kernels have their modules in
        another package.
        """
        found: list[str] = []
        waiting = [name]
        while waiting:
            one = waiting.pop(0)
            facts = self._facts(one)
            if facts is None:
                continue
            if _is_versioned(one):
                found.append(one)
            for part in facts.get("Depends", "").split(","):
                dependency = part.split("|")[0].split("(")[0].strip()
                if _is_versioned(dependency) and dependency not in found and dependency not in waiting:
                    waiting.append(dependency)
        return found

    def _described(self, names: list[str]) -> KernelPackages:
        # 'http://…' NAME_VERSION_ARCH.deb BYTES SHA256:…
        lines = self._apt("apt-get", "--print-uris", "download", *names).splitlines()
        fetched = [line.split() for line in lines if line.startswith("'")]
        facts = self._facts(names[0]) or {}
        identity = " ".join(sorted(f"{words[1]} {words[-1]}" for words in fetched))
        return KernelPackages(
            tuple(names),
            facts.get("Version", ""),
            sum(int(words[2]) for words in fetched),
            boot_key(self._busybox(), identity),
        )

    def _facts(self, package: str) -> dict[str, str] | None:
        """The fields of a package; None if there is no such package."""
        try:
            text = self._apt("apt-cache", "show", "--no-all-versions", package)
        except HoldfastError as error:
            if error.code != "image_tool":
                raise
            return None
        return dict(line.split(": ", 1) for line in text.splitlines() if ": " in line and line[:1] != " ") or None

    def _busybox(self) -> bytes:
        with open(self._tools.paths["busybox"], "rb") as stream:
            return stream.read()

    # -- the root file system -------------------------------------------------------------------------------------

    def say_what_is_fetched(self) -> None:
        """Report the packages to download, their number and size. Raises `HoldfastError` if one is not available."""
        self._update()
        empty = self._write(b"no-packages", b"")
        lines = self._apt(
            "apt-get",
            "-o",
            f"Dir::State::status={os.fsdecode(empty)}",
            "--print-uris",
            "--yes",
            "--no-install-recommends",
            "install",
            "?essential",
            "apt",
            *DEFAULT_PACKAGES,
            *self._recipe.packages,
        ).splitlines()
        sizes = [int(line.split()[2]) for line in lines if line.startswith("'")]
        more = f", with {', '.join(self._recipe.packages)}" if self._recipe.packages else ""
        self._progress(f"Fetching {plural(len(sizes), 'package')} ({size(sum(sizes))}) of {self._where()}{more}")

    def build_root(self) -> bytes:
        """The root file system as an archive (tar): its path."""
        path = os.path.join(self._work, b"root.tar")
        arguments = mmdebstrap_arguments(
            self._recipe,
            suite=self.sources[0].suite,
            sources=self._sources_file(),
            target=os.fsdecode(path),
            architecture=self._architecture,
            as_root=os.geteuid() == 0,
        )
        # Root works in our directory. In a user namespace it is another user, who has no access to it.
        environment = {"TMPDIR": os.fsdecode(self._directory(b"tmp"))} if os.geteuid() == 0 else {}
        if os.geteuid() == 0:
            # mmdebstrap's mounts for commands in the root stay when it is killed: keep them away from this host.
            arguments = ["unshare", "--mount", "--", self._tools.paths["mmdebstrap"], *arguments[1:]]
        try:
            self._tools.run_contained(
                arguments, seconds=_BUILD_SECONDS, follow=self._follow_mmdebstrap, environment=environment
            )
        except HoldfastError as error:
            if not self._running:
                raise
            raise HoldfastError(
                f"a command failed in the image: {visible(self._running)}: {visible(self._last_line)}", code=error.code
            ) from error
        return path

    def _follow_mmdebstrap(self, line: str) -> None:
        """Report its progress, and the output of the recipe's commands."""
        kind, _, text = line.partition(": ")
        if kind == "H":
            self._running, self._last_line = text, "it says nothing"
            if text:
                self._progress(f"Running {visible(text)}")
        elif kind in ("I", "W", "E"):
            if kind == "I" and text.startswith(("extracting", "installing", "creating")):
                self._running = ""
                self._progress(visible(text[:1].upper() + text[1:].removesuffix("...")))
        elif self._running and line:
            self._last_line = line
            self._progress(f"  {visible(line)}")

    # -- apt ------------------------------------------------------------------------------------------------------

    def _update(self) -> None:
        if self._updated:
            return
        self._progress(f"Reading the lists of packages of {self._where()}")
        self._apt("apt-get", "update", seconds=_UPDATE_SECONDS)
        self._updated = True

    def _where(self) -> str:
        return f"{self.sources[0].suite} at {self.sources[0].uri}"

    def _apt(self, program: str, *words: str, seconds: float = 120, cwd: bytes | None = None) -> str:
        lists, cache = self._directory(b"lists"), self._directory(b"cache")
        for directory in (os.path.join(lists, b"partial"), os.path.join(cache, b"archives/partial")):
            os.makedirs(directory, 0o700, exist_ok=True)
        options = {
            "Dir::Etc::sourcelist": self._sources_file(),
            "Dir::Etc::sourceparts": "/dev/null",
            "Dir::State::lists": os.fsdecode(lists),
            "Dir::Cache": os.fsdecode(cache),
            "APT::Architecture": self._architecture,
            "APT::Sandbox::User": "root",  # another user could not read this directory
            "Acquire::Languages": "none",
        }
        given = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        output = self._tools.run([program, "-q", *given, *words], seconds=seconds, output=8 << 20, cwd=cwd)
        return output.decode("utf-8", "replace")

    def _sources_file(self) -> str:
        path = os.path.join(self._work, b"holdfast.sources")
        if not os.path.exists(path):
            self._write(b"holdfast.sources", "\n".join(one.stanza() for one in self.sources).encode())
        return os.fsdecode(path)

    def _directory(self, name: bytes) -> bytes:
        path = os.path.join(self._work, name)
        os.makedirs(path, 0o700, exist_ok=True)
        return path

    def _write(self, name: bytes, content: bytes) -> bytes:
        path = os.path.join(self._work, name)
        with open(path, "wb") as stream:
            stream.write(content)
        return path


def mmdebstrap_arguments(
    recipe: Recipe, *, suite: str, sources: str, target: str, architecture: str, as_root: bool
) -> list[str]:
    """The command line that makes a root file system as an archive. ``sources`` is a file of apt's."""
    hooks = [
        *(f"printf 'H: %s\\n' {shlex.quote(one)} >&2; {_in_root(one)}" for one in recipe.commands),
        # This host's own, which mmdebstrap lends: a machine gets its own.
        f"echo 'H: ' >&2; {_in_root('rm -f /etc/resolv.conf /etc/hostname')}",
    ]
    return [
        "mmdebstrap",
        f"--mode={'root' if as_root else 'unshare'}",
        "--variant=minbase",
        "--format=tar",
        f"--architectures={architecture}",
        f"--include={','.join(dict.fromkeys((*DEFAULT_PACKAGES, *recipe.packages)))}",
        *(f"--dpkgopt={option}" for option in _LEFT_OUT),
        *(f"--customize-hook={hook}" for hook in hooks),
        suite,
        target,
        sources,
    ]


def _in_root(command: str) -> str:
    """A line for mmdebstrap's shell, to which it gives the new root's path."""
    return f'chroot "$1" /bin/sh -ec {shlex.quote(command)} >&2 </dev/null'


def pack_root(archive: bytes, target: bytes, tools: Tools) -> None:
    """Make the squashfs ``target`` of an archive (tar). Nothing is unpacked on this host's file system."""
    fd = os.open(archive, os.O_RDONLY | os.O_CLOEXEC)
    try:
        tools.run(
            [
                *("mksquashfs", "-", os.fsdecode(target), "-tar", "-noappend", "-no-progress", "-quiet"),
                # The attributes of the root directory come from no archive.
                *("-root-mode", "755", "-root-uid", "0", "-root-gid", "0"),
                *("-comp", "zstd", "-Xcompression-level", "3"),
            ],
            seconds=_PACK_SECONDS,
            stdin=fd,
        )
    finally:
        os.close(fd)


def _parts_of_kernel(unpacked: bytes) -> tuple[str, bytes, bytes]:
    """The release of the kernel in an unpacked package, its file, and the directory of its modules."""
    for modules in (b"lib/modules", b"usr/lib/modules"):
        directory = os.path.join(unpacked, modules)
        for name in sorted(os.listdir(directory)) if os.path.isdir(directory) else ():
            tree = os.path.join(directory, name)
            for path in (os.path.join(unpacked, b"boot/vmlinuz-" + name), os.path.join(tree, b"vmlinuz")):
                if os.path.isfile(path):
                    return os.fsdecode(name), path, tree
    raise UnsupportedError("there is no kernel in the package, or none with its modules", code="kernel_lacks_module")


def _kernel_names(architecture: str) -> list[str]:
    return [name.format(architecture=architecture) for name in KERNELS]


def _is_versioned(package: str) -> bool:
    return re.match(r"linux-(image|modules)-(unsigned-)?[0-9]", package) is not None


def _codename() -> str:
    for path in ("/etc/os-release", "/usr/lib/os-release"):
        try:
            with open(path, encoding="utf-8", errors="replace") as stream:
                return host_codename(stream.read(1 << 16))
        except OSError:
            continue
    return ""
