"""Diagnosis: the abilities of this machine, the home and a workspace, their consequences, and possible improvements.

Everything is found by trying it, in temporary directories where files are needed. Nothing is repaired or made: a
missing home or workspace stays missing. Only `repair_catalog` restores a damaged catalog.
"""

from __future__ import annotations

import os
import platform
import shutil
import stat
import tempfile
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Literal

from holdfast.engine.history.outside_policy import LOCK_HINT, WHY_NO_LOCK
from holdfast.engine.opening.current_run import current_run
from holdfast.engine.opening.opener import Opener
from holdfast.engine.opening.operation_journal import read_operation
from holdfast.model.clock import SystemClock
from holdfast.model.errors import HoldfastError, NotFoundError, UnsupportedError, unexpected
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.message_text import named_steps, plural, size, with_article
from holdfast.model.paths import UNDO_LOG_IN_TREE, display, under

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from holdfast.engine.opening.context import Context
    from holdfast.files.watch import Backend
    from holdfast.snapshot.port import Capabilities, Provider
    from holdfast.store.catalog_repair import RepairedCatalog

Verdict = Literal["good", "limited", "wrong"]
"""``good``; ``limited``: a feature is missing or costs more; ``wrong``: broken, commands will fail."""

Area = Literal[
    "system", "home", "store", "workspace", "watching", "supervision", "isolation", "machines", "mounting", "snapshots"
]

_LITTLE_BYTES: Final = 1 << 30
_PATIENCE_SECONDS: Final = 20.0
_LOCK_SECONDS: Final = 3.0
_APART_SECONDS: Final = 60.0
"""By so much the clocks of machines that share a catalog may differ without a word."""
_FOR_TRIALS: Final = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108
_NOT_INSIDE: Final = (
    "the home, the workspace, watching, supervision and isolation are not checked, "
    "because a supervised process may not try them"
)


class Finding(NamedTuple):
    """One check."""

    area: Area
    verdict: Verdict
    message: str
    """The finding and its consequence."""
    help: str = ""
    """A change that would improve it."""


def diagnose(
    path: str | bytes | os.PathLike[str] = ".", *, home: str | bytes | os.PathLike[str] | None = None
) -> Sequence[Finding]:
    """Check everything, as `holdfast doctor`. ``path`` is in the workspace, if there is one. Takes a second or two.

    Raises nothing for what it finds: a failed check is a finding, too.
    """
    directory = os.path.realpath(os.fsencode(path))
    found: list[Finding] = []
    try:
        # A remote catalog that does not answer is asked several times.
        opener = Opener(home=None if home is None else os.fsencode(home), flags={"lock.timeout": _LOCK_SECONDS})
    except HoldfastError as error:
        return [*_system(), _failed("home", error)]
    run = None
    if os.path.isdir(opener.home):
        with suppress(HoldfastError, OSError):
            run = current_run(opener.open_home())
    if run is not None:
        found = [*_system(), Finding("system", "good", f"inside of a run, {run}: {_NOT_INSIDE}", "look from outside")]
        opener.close()
        return found
    areas: Sequence[tuple[Area, Callable[[], Iterator[Finding]]]] = (
        ("system", _system),
        ("home", lambda: _home(opener)),
        ("store", lambda: _store(opener)),
        ("workspace", lambda: _workspace(opener, directory)),
        ("watching", lambda: _watching(directory)),
        ("supervision", lambda: _supervision(directory)),
        ("isolation", _isolation),
        ("machines", lambda: _machines(opener, directory)),
        ("mounting", _mounting),
        ("snapshots", lambda: _snapshots(opener, directory)),
    )
    try:
        for area, look in areas:
            try:
                found.extend(look())
            except HoldfastError as error:
                found.append(_failed(area, error))
            except OSError as error:
                found.append(_failed(area, unexpected(error)))
    finally:
        opener.close()
    return found


def repair_catalog(home: str | bytes | os.PathLike[str] | None = None) -> RepairedCatalog | None:
    """Restore a damaged or lost catalog; None if it is intact. Its sources are the newest backup and the objects' own
    records. The damaged file is kept beside it.

    No other process may have the home open. Raises `LockedError` if one has, `NotFoundError` if the home never
    held data, `UnsupportedError` for a catalog on a server, `StorageError` without room for it: then all is as before.
    """
    from holdfast.store.catalog_repair import repair

    opener = Opener(home=None if home is None else os.fsencode(home))
    try:
        if not os.path.isdir(opener.home):
            raise NotFoundError(
                f"{display(opener.home)} holds no data",
                hint="HOLDFAST_HOME and --home name another home",
                code="no_home",
            )
        return repair(opener.home, opener.settings(None), clock=SystemClock())
    finally:
        opener.close()


def _failed(area: Area, error: HoldfastError) -> Finding:
    return Finding(area, "wrong", error.message, error.hint or "")


# -- the machine ------------------------------------------------------------------------------------------------------


def _system() -> Iterator[Finding]:
    from importlib.metadata import version

    about = os.uname()
    text = f"Holdfast {version('holdfast')}, Python {platform.python_version()}, {about.sysname} {about.release}"
    yield Finding("system", "good", f"{text} on {about.machine}, user {os.geteuid()}")


def _trial(directory: bytes) -> tempfile.TemporaryDirectory[str]:
    """A new directory, outside of the workspace that ``directory`` is in: also where ``TMPDIR`` is in it, whose mtime
    would tell of this.
    """
    for above in _FOR_TRIALS:
        if os.access(above, os.W_OK | os.X_OK) and not under(directory, os.fsencode(os.path.realpath(above))):
            return tempfile.TemporaryDirectory(prefix="holdfast-", dir=above)
    return tempfile.TemporaryDirectory(prefix="holdfast-")


def _supervision(directory: bytes) -> Iterator[Finding]:
    """Whether `holdfast run` can record what a command does: tried with one that does nothing."""
    from holdfast.files.linux.native import native
    from holdfast.processes.child import Limits, run
    from holdfast.processes.child_environment import with_our_modules
    from holdfast.processes.helper_process import module_words
    from holdfast.supervisor.confinement import landlock
    from holdfast.supervisor.launch.supervised_run import yama_scope

    with _trial(directory) as folder:
        os.mkdir(os.path.join(folder, "tree"))
        options = ["--root", os.path.join(folder, "tree"), "--log", os.path.join(folder, "log"), "--", "true"]
        tried = run(
            module_words("holdfast.supervisor.launch.supervised_run", *options),
            Limits(_PATIENCE_SECONDS),
            cwd=os.fsencode(folder),
            environment=with_our_modules(os.environb),
        )
        reason = tried.errors.decode("utf-8", "replace").strip().removeprefix("holdfast: ")
        if tried.why:
            reason = f"nothing happened for {_PATIENCE_SECONDS:.0f} seconds"
    if tried.code:
        text = f"`holdfast run` cannot record the changes of a command here: {reason or 'it ended without a word'}"
        yield Finding("supervision", "limited", text, "`holdfast watch` saves without supervision")
        return
    yield Finding("supervision", "good", "`holdfast run` records every change of a command as it happens")
    loop = native()
    text = f"by Python ({loop.why})" if loop.module is None else "natively"
    yield Finding("supervision", "good", f"the usual changes of a command are carried out {text}")
    for text in landlock.limitations():
        yield Finding("supervision", "limited", text)
    if scope := yama_scope():
        text = f"each path of a call is read by way of the command's parent (kernel.yama.ptrace_scope is {scope})"
        yield Finding("supervision", "limited", text, "`sudo sysctl kernel.yama.ptrace_scope=0` makes that faster")


def _isolation() -> Iterator[Finding]:
    from holdfast.sandbox.isolation_probe import probe

    for found in probe():
        text = found.name if found.works else f"{found.name}: {found.reason}"
        yield Finding("isolation", "good" if found.works else "limited", text, found.help)


def _machines(opener: Opener, directory: bytes) -> Iterator[Finding]:
    from holdfast.files.linux.case_sensitivity import IGNORES_CASE, ignores_case
    from holdfast.sandbox.vm.probe import probe

    for found in probe(opener.home, opener.settings(None).vm.image):
        yield Finding("machines", "good" if found.works else "limited", found.message, found.help)
    if os.path.isdir(directory) and ignores_case(directory):
        yield Finding("machines", "limited", f"no virtual machine can show {display(directory)}: {IGNORES_CASE}")


def _mounting() -> Iterator[Finding]:
    """Whether checkpoints can be mounted, and forked by mount: looked up, as trying it would show up everywhere."""
    device = os.access("/dev/fuse", os.R_OK | os.W_OK)
    helped = shutil.which("fusermount3") is not None
    if device and (os.geteuid() == 0 or helped):
        yield Finding("mounting", "good", "checkpoints can be mounted")
    else:
        lacking = "fusermount3" if device else "access to /dev/fuse"
        advice = "the package fuse3, or root" if device else "the module fuse; in a container `--device /dev/fuse`"
        yield Finding("mounting", "limited", f"checkpoints cannot be mounted: there is no {lacking}", advice)
    with open("/proc/filesystems", encoding="ascii") as file:
        overlay = any(line.split()[-1] == "overlay" for line in file)
    if device and overlay and os.geteuid() == 0:
        yield Finding("mounting", "good", "they can be forked by mount, if the home can hold an upper layer")
    else:
        lacking = "it needs root, or a user namespace" if overlay else "the kernel has no overlayfs loaded"
        advice = "root (`unshare --user --map-root-user --mount`)" if overlay else "modprobe overlay"
        yield Finding("mounting", "limited", f"they cannot be forked by mount: {lacking}", advice)


def _snapshots(opener: Opener, directory: bytes) -> Iterator[Finding]:
    """Which providers could make copies of the workspace, which one is chosen, and why."""
    from holdfast.engine.forks.workspace_providers import providers_of
    from holdfast.snapshot.provider_selection import choose

    try:
        context = opener.open(directory)
    except NotFoundError as error:
        if error.code != "no_workspace":
            raise
        return
    if not os.path.isdir(context.workspace.path):
        return
    yield from _images()
    yield from _damaged_entries(context)
    providers = providers_of(context, "doctor")
    found = [provider.detect() for provider in providers]
    for one in found:
        carried = "everything, ignored files too" if one.carries_ignored else "what it captures only"
        about = (
            f"score {one.score}, modes {', '.join(one.modes)}, copies hold {carried}" if one.score else "cannot be used"
        )
        text = "; ".join((f"{one.provider}: {about}", *one.notes, *_copy_size(context, one)))
        yield Finding("snapshots", "good" if one.score else "limited", text)
    yield from _promoting(context, providers)
    try:
        choice = choose(providers, context.settings.snapshot.provider, detected=found)
    except UnsupportedError as error:
        yield Finding("snapshots", "limited", error.message, "docs/reference/snapshot.md says what each provider needs")
        return
    yield Finding("snapshots", "good", f"{choice.provider.name} is used, as {choice.reason}")


def _promoting(context: Context, providers: Sequence[Provider]) -> Iterator[Finding]:
    """The provider that would make the copy in which a promotion to the workspace is built."""
    from holdfast.snapshot.provider_selection import choose

    beside = os.path.dirname(context.workspace.path)
    found = [provider.detect_beside(beside) for provider in providers]
    try:
        choice = choose(
            providers, context.settings.promote.provider, ignored=True, key="promote.provider", detected=found
        )
    except UnsupportedError as error:
        yield Finding("snapshots", "limited", error.message, "docs/reference/promote.md says what can make such a copy")
        return
    text = f"a promotion to it is built in a copy that {choice.provider.name} makes, as {choice.reason}"
    yield Finding("snapshots", "good", text)


def _copy_size(context: Context, provider: Capabilities) -> Iterator[str]:
    """The amount to copy, where everything is copied."""
    from holdfast.engine.forks.workspace_providers import place_of
    from holdfast.snapshot.full_copy import MOST_BYTES, size_of_copy

    if provider.provider != "copy" or not provider.score:
        return
    found, most = (
        size_of_copy(place_of(context, "doctor", "copy"), context.workspace.path),
        context.settings.snapshot.max_copy_bytes,
    )
    yield f"that is {plural(found.files, 'file')} of {size(found.bytes)} now"
    if most and found.bytes > most:
        yield f"which is refused, as it is more than the {size(most)} of {MOST_BYTES}"


def _damaged_entries(context: Context) -> Iterator[Finding]:
    from holdfast.engine.opening.home import SNAPSHOTS
    from holdfast.snapshot.ledger import damaged_in

    folder = os.path.join(context.folder, SNAPSHOTS)
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        for damage in damaged_in(os.path.join(folder, name)):
            yield Finding("snapshots", "wrong", damage.message, damage.hint or "")


def _images() -> Iterator[Finding]:
    """Whether there can be snapshots of disks."""
    if shutil.which("qemu-img") is None:
        yield Finding("snapshots", "limited", "there can be no disk images: there is no qemu-img", "qemu-utils has it")
    else:
        yield Finding("snapshots", "good", "there can be disk images, by qemu-img")


# -- the home and the workspace ---------------------------------------------------------------------------------------


def _home(opener: Opener) -> Iterator[Finding]:
    home = opener.home
    if not os.path.isdir(home):
        yield Finding("home", "good", f"{display(home)} is not there yet: `holdfast init` makes it")
        return
    about = os.stat(home)
    if about.st_uid != os.geteuid():
        text = f"{display(home)} belongs to user {about.st_uid}, not to you"
        yield Finding("home", "wrong", text, "HOLDFAST_HOME and --home name another one")
        return
    if stat.S_IMODE(about.st_mode) & 0o077:
        text = f"other users can read {display(home)} (mode {stat.S_IMODE(about.st_mode):04o})"
        yield Finding("home", "limited", text, "the next command that saves takes that away")
    # Counted as in `stats`, without released workspaces.
    known = sum(row.live for row in opener.open_home().store.catalog.workspaces(everywhere=True))
    yield Finding("home", "good", f"{display(home)}, on {_file_system(home)}; workspaces in it: {known}")
    if opener.settings(None).store.catalog:
        yield from _catalog(opener)
    else:
        yield from _spare(home)
    usage = shutil.disk_usage(home)
    if usage.free < _LITTLE_BYTES:
        text = f"{usage.free >> 20} MiB are left on the file system of the home"
        yield Finding("home", "limited", text, "`holdfast forget` and `holdfast gc` free unused space")


def _spare(home: bytes) -> Iterator[Finding]:
    """The age of its newest backup; a young home has none."""
    from holdfast.model.clock import isoformat
    from holdfast.store.catalog_spare import spares

    found = spares(home)
    if found:
        yield Finding("home", "good", f"its catalog has a spare of {isoformat(found[0].at)}")


def _catalog(opener: Opener) -> Iterator[Finding]:
    """The properties of the catalog's server, which has just answered."""
    from holdfast.store.postgresql.database import PostgresDatabase, server_info

    database = opener.store().catalog.database
    assert isinstance(database, PostgresDatabase)
    found = server_info(database)
    text = f"its catalog is {found.shown}, on PostgreSQL {found.server}, {found.milliseconds:.1f} ms away"
    yield Finding("home", "good", text)
    if found.standby:
        text = "the catalog's server is a standby: saved data can be read, and nothing saved"
        yield Finding("home", "limited", text, "name the primary in store.catalog, or all servers, with commas between")
    if found.forgetful:
        text = f"the catalog's server may lose saved data at a power failure: {', '.join(found.forgetful)} is off"
        yield Finding("home", "wrong", text, "set it to on in postgresql.conf")
    if not found.guarded:
        text = "the connection to the catalog's server is open: others can read and change its traffic"
        yield Finding("home", "limited", text, "sslmode=verify-full in store.catalog (docs/reference/postgresql.md)")
    if abs(found.clock) > _APART_SECONDS:
        text = f"the clock of the catalog's server differs from this machine's by {abs(found.clock):.0f} seconds"
        yield Finding("home", "limited", text, "set both by NTP: leases and the grace time go by them")


def _store(opener: Opener) -> Iterator[Finding]:
    """Where objects are and whether that works: tried, if it is a bucket; whether they are encrypted."""
    if not os.path.isdir(opener.home):
        return
    from holdfast.engine.upkeep import store_copies

    settings = opener.settings(None).store
    about = store_copies.info(opener)
    if about.remote:
        found = store_copies.probe(opener)
        for step in found.steps:
            if not step.ok:
                text = f"objects cannot be kept in {found.location}: {step.name}: {step.message}"
                yield Finding(
                    "store",
                    "wrong",
                    text,
                    "docs/reference/store.md lists the rights that Holdfast needs in a bucket",
                )
        if found.ok:
            claim = f", claimed by this store ({about.id})" if about.claimed else ""
            yield Finding("store", "good", f"objects are kept in {found.location}{claim}")
            if found.conditional_writes == "yes":
                yield Finding("store", "good", "its server has conditional writes")
            else:
                how = "has no conditional writes" if found.conditional_writes == "no" else "answers them wrongly"
                yield Finding("store", "good", f"its server {how}: claims go by listing")
    else:
        yield Finding("store", "good", f"objects are kept in the directory {about.location}")
    if about.encryption_key:
        old = f", {plural(len(settings.old_keys), 'older one is', 'older ones are')} known" if settings.old_keys else ""
        yield Finding("store", "good", f"objects are encrypted with the key {about.encryption_key}{old}")


def _workspace(opener: Opener, directory: bytes) -> Iterator[Finding]:
    try:
        context = opener.open(directory)
    except NotFoundError as error:
        if error.code != "no_workspace":
            raise
        text = f"{display(directory)} is in no workspace"
        yield Finding("workspace", "good", text, error.hint or "")
        return
    root = context.workspace.path
    if not os.path.isdir(root):
        text = f"{display(root)} is gone; its checkpoints are not"
        yield Finding("workspace", "limited", text, "`holdfast restore @` brings it back")
        return
    yield Finding("workspace", "good", f"{display(root)}, on {_file_system(root)}")
    yield from _unfinished(context)
    if context.settings.undo.outside == "lock":
        yield Finding("workspace", "wrong", f"undo.outside is lock, which is impossible: {WHY_NO_LOCK}", LOCK_HINT)
    yield _sharing(context)
    yield _removal(context)


def _unfinished(context: Context) -> Iterator[Finding]:
    unfinished = read_operation(context.folder)
    if unfinished is not None and not unfinished.steps:
        text = f"{with_article(unfinished.kind)} was cut short, and files may be incomplete"
        help_ = "`holdfast restore --continue` finishes it, `holdfast restore --abort` goes back"
        yield Finding("workspace", "limited", text, help_)
        return
    yield Finding("workspace", "good", "no restore was cut short in it")
    if unfinished is not None:
        text = f"the {unfinished.kind} of {named_steps(unfinished.steps)} was cut short"
        yield Finding("workspace", "limited", text, "the next command that changes anything finishes it first")


def _sharing(context: Context) -> Finding:
    from holdfast.files.linux.reflink import share_blocks

    with (
        tempfile.TemporaryFile(dir=context.folder) as source,
        tempfile.TemporaryFile(dir=context.workspace.path) as target,
    ):
        source.write(bytes(1 << 16))
        source.flush()
        shares = share_blocks(source.fileno(), target.fileno())
    if shares:
        return Finding("workspace", "good", "its files share their blocks with copies of them (reflinks)")
    text = "its files cannot share blocks with copies in the home: a file that a step writes to is copied first"
    return Finding("workspace", "limited", text, "btrfs, or XFS with reflinks, for the tree and the home together")


def _removal(context: Context) -> Finding:
    from holdfast.engine.opening.undo_log import log_directory

    if log_directory(context) != os.path.join(context.workspace.path, UNDO_LOG_IN_TREE):
        return Finding("workspace", "good", "files that a step removes are renamed into the undo log, not copied")
    text = "the home is on another mount, so that the undo log lies in the workspace, as .holdfast/undo"
    return Finding("workspace", "good", text)


def _file_system(path: bytes) -> str:
    from holdfast.files.watch.watched_root import WatchedRoot

    root = WatchedRoot(path)
    try:
        return display(root.mount().type) or "a file system of no known kind"
    finally:
        root.close()


# -- watching ---------------------------------------------------------------------------------------------------------


def _watching(directory: bytes) -> Iterator[Finding]:
    """The mechanism of `holdfast watch`, tried on a directory without subdirectories."""
    from holdfast.files.watch import open_watcher
    from holdfast.files.watch.watched_root import WatchedRoot

    if not os.path.isdir(directory):
        return
    root = WatchedRoot(directory)
    mount = root.mount()
    root.close()
    if mount.remote:
        text = (
            f"{display(directory)} is on {display(mount.type)}, where other machines change files unseen by this kernel"
        )
        yield Finding("watching", "limited", f"{text}: Holdfast scans all of it again and again")
        return
    with _trial(directory) as folder:
        places: dict[Backend, bytes] = {"fanotify": directory, "inotify": os.fsencode(folder)}
        for backend, where in places.items():
            try:
                watcher = open_watcher(where, backend)
            except UnsupportedError as error:
                text = error.message.removeprefix(f"cannot watch {display(where)} by {backend}: ")
                yield Finding("watching", "limited", f"{backend} cannot be had: {text}", error.hint or "")
                continue
            limits = watcher.limits
            watcher.close()
            yield Finding("watching", "good", f"`holdfast watch` sees changes by {backend}")
            if limits:
                yield Finding("watching", "limited", limits)
            return
    yield Finding("watching", "limited", "Holdfast scans all of the workspace again and again")
