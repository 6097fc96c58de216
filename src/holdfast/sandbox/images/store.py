"""The images of a home: found, listed, built, imported and removed.

`docs/formats/image.md` has the layout. An image is a manifest; its files are named by their content and shared. It is
made in a directory of its own, and appears when its manifest is renamed into place. An image may be removed or replaced
at any moment: a process with its files open, such as a running machine, keeps using them.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from holdfast.files.linux.mount_table import mounts
from holdfast.files.linux.process_lock import exclusive
from holdfast.files.note_file import sync_directory
from holdfast.model.clock import SystemClock
from holdfast.model.errors import HoldfastError, IntegrityError, NotFoundError, StorageError, room_hint
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.log import Log
from holdfast.model.paths import display
from holdfast.sandbox.images.debian_builder import DebianBuilder, Kernel, Recipe, pack_root
from holdfast.sandbox.images.host_tools import architecture, find_tools
from holdfast.sandbox.images.initrd import init_key
from holdfast.sandbox.images.manifest import (
    DEFAULT_NAME,
    NOTE,
    Image,
    ImageManifest,
    StoredFile,
    check_name,
    decode_manifest,
    encode_manifest,
    image_id,
)
from holdfast.sandbox.images.oci_archive import flatten
from holdfast.sandbox.images.root_tree import RootTree
from holdfast.snapshot.private_directories import make_private

if TYPE_CHECKING:
    from collections.abc import Generator

    from holdfast.model.clock import Clock
    from holdfast.sandbox.images.debian_builder import Progress

_LOG = Log(__name__)

_FILES: Final = b".files"
_LOCK: Final = b".lock"
_UNFINISHED: Final = b".new-"
_WAIT_SECONDS: Final = 60.0
"""For another process that puts an image in place, or removes one."""


class ImageStore:
    """The images in one home. Any number of processes may use it at once."""

    def __init__(self, home: bytes, *, clock: Clock | None = None) -> None:
        """``home`` is the home's directory, of which nothing is made before there is an image."""
        self._directory = os.path.join(os.path.abspath(home), b"images")
        self._clock: Clock = SystemClock() if clock is None else clock

    # -- looking --------------------------------------------------------------------------------------------------

    def find(self, name: str = DEFAULT_NAME) -> Image:
        """The image called ``name``, checked: its files have the sizes in its manifest, and a file that was changed
        since it was put in place is read completely and compared.

        Raises `NotFoundError` if there is none, and `IntegrityError` or `FormatError` if it is damaged.
        """
        image = self._read(check_name(name))
        for path, file in zip((image.kernel, image.initrd, image.root), image.manifest.files(), strict=True):
            self._check(image, path, file)
        return image

    def list(self) -> list[Image]:
        """All images by name. One that is damaged is left out, with a warning in the log."""
        found: list[Image] = []
        for name in self._names():
            try:
                found.append(self.find(name))
            except NotFoundError:
                continue  # it was removed meanwhile
            except HoldfastError as error:
                _LOG.warning("the image %s cannot be used: %s", name, error.message)
        return found

    def _names(self) -> list[str]:
        try:
            names = sorted(os.fsdecode(name) for name in os.listdir(self._directory) if not name.startswith(b"."))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StorageError(f"cannot read {display(self._directory)}: {error.strerror}") from error
        return [name for name in names if os.path.lexists(os.path.join(self._folder(name), NOTE.name))]

    def _read(self, name: str) -> Image:
        folder = self._folder(name)
        body = NOTE.read(folder) if os.path.isdir(folder) else None
        if body is None:
            raise _no_such_image(name, self._names())
        manifest = decode_manifest(body, folder)
        kernel, initrd, root = (self._file(one) for one in manifest.files())
        return Image(name, image_id(body), kernel, initrd, root, manifest)

    def _check(self, image: Image, path: bytes, file: StoredFile) -> None:
        try:
            about = os.stat(path, follow_symlinks=False)
            noted = os.stat(os.path.join(self._folder(image.name), NOTE.name)).st_mtime_ns
            if about.st_size != file.bytes:
                raise _damaged(image.name, path, f"has {about.st_size} bytes, not {file.bytes}")
            # Reading all of it takes as long as a fork; an untouched file is unchanged.
            if about.st_ctime_ns > noted and _digest(path) != file.sha256:
                raise _damaged(image.name, path, "is not what its SHA-256 says")
        except FileNotFoundError as error:
            raise _damaged(image.name, path, "is missing") from error
        except OSError as error:
            raise StorageError(f"cannot read {display(path)}: {error.strerror}") from error

    def _folder(self, name: str) -> bytes:
        return os.path.join(self._directory, os.fsencode(name))

    def _file(self, file: StoredFile) -> bytes:
        return os.path.join(self._directory, _FILES, file.sha256.encode())

    # -- making ---------------------------------------------------------------------------------------------------

    def build(self, name: str, recipe: Recipe, progress: Progress) -> Image:
        """Build an image of Debian's packages, which replaces one of the same name.

        Reports the downloads before it begins them. After a failure or a kill the images are unchanged. Raises
        `UsageError` for an invalid recipe, `UnsupportedError` for a missing program, with the packages to install,
        `NotFoundError`, `StorageError`, and `HoldfastError` if a program fails.
        """
        check_name(name)
        with self._making() as work:
            builder = DebianBuilder.on_this_host(work, recipe, progress)
            builder.say_what_is_fetched()
            boot = self._boot_parts(builder)
            archive = builder.build_root()
            with open(archive, "rb") as stream:
                python = RootTree.of([stream], "the root file system").python()
            return self._publish(
                name,
                _Parts(boot, self._packed(archive, work, progress)),
                source=f"{builder.sources[0].suite} {builder.sources[0].uri}",
                python=python,
                packages=builder.packages,
                commands=recipe.commands,
            )

    def import_archive(self, name: str, path: bytes, progress: Progress) -> Image:
        """Make an image from a container's: an archive of ``docker save`` or ``podman save``, or one in OCI's format
        (``skopeo copy … oci-archive:FILE``). The kernel is an existing image's, or is downloaded.

        Raises as `build`, `FormatError` for an invalid archive, `EscapeError` for paths that lead out of it, and
        `UnsupportedError` if it has no Python 3.8 or later.
        """
        check_name(name)
        with self._making() as work:
            find_tools("mksquashfs")
            progress(f"Reading {display(path)}")
            archive = os.path.join(work, b"root.tar")
            python = flatten(path, archive, architecture=architecture(), work=work)
            boot = self._boot_parts_here()
            if boot is None:
                builder = DebianBuilder.on_this_host(work, Recipe(), progress, kernel_only=True)
                boot = self._boot_parts(builder)
            return self._publish(
                name, _Parts(boot, self._packed(archive, work, progress)), source="archive", python=python
            )

    def _boot_parts(self, builder: DebianBuilder) -> Kernel:
        """A kernel by ``builder``, or that of an existing image."""
        found = builder.find_kernel()
        for image in self.list():
            if image.manifest.boot == found.boot and image.manifest.kernel_package == found.package:
                return _boot_parts_of(image)
        return builder.build_kernel(found)

    def _boot_parts_here(self) -> Kernel | None:
        """The kernel of the default image, else of the newest; None if none has an initrd of this version."""
        fitting = [
            one
            for one in self.list()
            if one.manifest.architecture == architecture() and one.manifest.init == init_key()
        ]
        best = max(fitting, key=lambda one: (one.name == DEFAULT_NAME, one.manifest.created_at), default=None)
        return None if best is None else _boot_parts_of(best)

    def _packed(self, archive: bytes, work: bytes, progress: Progress) -> bytes:
        progress("Packing the root file system")
        root = os.path.join(work, b"root.image")
        pack_root(archive, root, find_tools("mksquashfs"))
        os.unlink(archive)
        return root

    def _publish(
        self,
        name: str,
        parts: _Parts,
        *,
        source: str,
        python: str,
        packages: tuple[str, ...] = (),
        commands: tuple[str, ...] = (),
    ) -> Image:
        """Put an image in place: its files, each durable before the manifest names it."""
        kernel = parts.kernel
        with self._changing():
            files = os.path.join(self._directory, _FILES)
            make_private(files)
            stored = [self._store(path) for path in (kernel.kernel, kernel.initrd, parts.root)]
            sync_directory(files)
            manifest = ImageManifest(
                architecture=architecture(),
                source=source,
                packages=packages,
                commands=commands,
                python=python,
                kernel_release=kernel.release,
                kernel_package=kernel.package,
                modules=kernel.modules,
                boot=kernel.boot,
                init=init_key(),
                kernel=stored[0],
                initrd=stored[1],
                root=stored[2],
                created_at=self._clock.now(),
            )
            folder = self._folder(name)
            make_private(folder)
            sync_directory(self._directory)
            NOTE.write(folder, encode_manifest(manifest))
            self._collect()
            return self._read(name)

    def _store(self, path: bytes) -> StoredFile:
        """Move the file to where its content says, or leave it where one of the same content is."""
        digest, size = _digest(path), os.stat(path).st_size
        file = StoredFile(digest, size)
        target = self._file(file)
        try:
            if path != target and not (os.path.isfile(target) and _digest(target) == digest):
                os.chmod(path, 0o600)
                _sync(path)
                os.rename(path, target)
        except OSError as error:
            raise StorageError(f"cannot write {display(target)}: {error.strerror}", hint=room_hint(error)) from error
        return file

    # -- removing -------------------------------------------------------------------------------------------------

    def remove(self, name: str) -> None:
        """Remove the image called ``name``, damaged or not, and the files that no other has.

        A process that has opened them keeps them: running machines are not affected. Raises `NotFoundError`.
        """
        folder = self._folder(check_name(name))
        with self._changing():
            self._sweep()
            if name not in self._names():
                raise _no_such_image(name, self._names())
            NOTE.remove(folder)
            self._remove_leftovers(folder)
            self._collect()

    def _remove_leftovers(self, folder: bytes) -> None:
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(folder, NOTE.name + b".new"))
        with suppress(OSError):
            os.rmdir(folder)

    def _collect(self) -> None:
        """Delete the files that no image has. While a manifest cannot be read, all of them may be its own."""
        needed: set[str] = set()
        for name in self._names():
            try:
                needed.update(file.sha256 for file in self._read(name).manifest.files())
            except HoldfastError as error:
                _LOG.warning("no file of images is deleted: %s", error.message)
                return
        files = os.path.join(self._directory, _FILES)
        with suppress(FileNotFoundError):
            for file in os.listdir(files):
                if os.fsdecode(file) not in needed:
                    os.unlink(os.path.join(files, file))

    # -- directories ----------------------------------------------------------------------------------------------

    @contextmanager
    def _changing(self) -> Generator[None]:
        """Hold the images: one process at a time puts one in place, or removes one."""
        try:
            make_private(self._directory)
        except OSError as error:
            raise StorageError(
                f"cannot make {display(self._directory)}: {error.strerror}", hint=room_hint(error)
            ) from error
        lock = os.path.join(self._directory, _LOCK)
        with exclusive(lock, timeout=_WAIT_SECONDS, clock=self._clock, what="the directory of images"):
            yield

    @contextmanager
    def _making(self) -> Generator[bytes]:
        """An empty directory for making an image, removed afterwards. Those of killed processes are removed first."""
        with self._changing():
            self._sweep()
            work = os.path.join(self._directory, _UNFINISHED + secrets.token_hex(8).encode())
            os.mkdir(work, 0o700)
            # The lock marks it as in use, until this process ends in any way.
            fd = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(fd, fcntl.LOCK_EX)
        try:
            yield work
        except OSError as error:
            raise StorageError(f"cannot make an image: {error.strerror or error}", hint=room_hint(error)) from error
        finally:
            try:
                _remove_tree(work)
            finally:
                os.close(fd)

    def _sweep(self) -> None:
        for name in os.listdir(self._directory):
            if not name.startswith(_UNFINISHED):
                continue
            path = os.path.join(self._directory, name)
            with suppress(FileNotFoundError):
                fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _remove_tree(path)
                except BlockingIOError:
                    continue  # another process builds there
                finally:
                    os.close(fd)


class _Parts(NamedTuple):
    """The parts of an image."""

    kernel: Kernel
    root: bytes


def _boot_parts_of(image: Image) -> Kernel:
    known = image.manifest
    return Kernel(known.kernel_release, known.kernel_package, known.boot, image.kernel, image.initrd, known.modules)


def _no_such_image(name: str, known: list[str]) -> NotFoundError:
    here = f"; those that are there: {', '.join(known)}" if known else ""
    command = "holdfast image build" + ("" if name == DEFAULT_NAME else f" {name}")
    return NotFoundError(f"there is no image {name}{here}", hint=f"`{command}` builds one", code="no_such_image")


def _damaged(name: str, path: bytes, why: str) -> IntegrityError:
    return IntegrityError(
        f"the image {name} is damaged: its file {display(path)} {why}",
        hint=f"`holdfast image build {name}` builds it again, `holdfast image remove {name}` removes it",
        code="image_damaged",
    )


def _digest(path: bytes) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sync(path: bytes) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _remove_tree(path: bytes) -> None:
    """Remove the contents of a directory of ours; not while it contains a mount, which is not ours."""
    inside = any(mount.point.startswith(path + b"/") for mount in mounts())
    if inside:
        _LOG.warning("%s is left: something is mounted in it", display(path))
        return
    shutil.rmtree(path, ignore_errors=True)
    if os.path.lexists(path):
        _LOG.warning("%s could not be removed", display(path))
