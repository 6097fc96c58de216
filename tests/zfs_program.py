"""A program ``zfs`` for machines without ZFS: the subset that is needed, over directories and bind mounts, with state.

It refuses what the real one refuses, with its words and exit codes (1: it failed, 2: it was called wrongly). Datasets
are directories, snapshots copies of them; a dataset is mounted by a bind mount, so that what is busy is busy.
Source: zfs(8), zfs-snapshot(8), zfs-clone(8), zfs-destroy(8), and what OpenZFS and zfs-fuse answer.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import re
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # (It is started hundreds of times: what it need not load, it does not.)
    from pathlib import Path
    from typing import Any, NoReturn

MS_RDONLY, MS_REMOUNT, MS_BIND = 1, 32, 4096
_libc = ctypes.CDLL(None, use_errno=True)
_NAME = re.compile(r"[A-Za-z0-9_.:-]+(/[A-Za-z0-9_.:-]+)*(@[A-Za-z0-9_.: -]+)?\Z")


def install(directory: Path, store: Path, dataset: str, mountpoint: Path) -> None:
    """Put the program into ``directory``, with a pool in ``store`` that has one dataset, mounted."""
    store.mkdir()
    State(str(store)).create(dataset, str(mountpoint))
    script = directory / "zfs"
    directory.mkdir(exist_ok=True)
    script.write_text(
        f"#!{sys.executable} -IS\nimport sys\nsys.path.insert(0, {os.path.dirname(__file__)!r})\n"
        f"from zfs_program import main\nmain({str(store)!r}, sys.argv[1:])\n"
    )
    script.chmod(0o755)


def fail(text: str, code: int = 1) -> NoReturn:
    sys.stderr.write(text + "\n")
    raise SystemExit(code)


class State:
    """What there is: by name its directory, its properties, and of a clone the snapshot that it is of."""

    def __init__(self, store: str) -> None:
        self.store = store
        self.file = f"{store}/state"
        self.sets: dict[str, dict[str, Any]] = {}
        if os.path.exists(self.file):
            with open(self.file) as file:
                self.sets = json.load(file)

    def save(self) -> None:
        with open(f"{self.file}.new", "w") as new:
            json.dump(self.sets, new)
        os.replace(f"{self.file}.new", self.file)

    def add(self, name: str, properties: dict[str, str], origin: str = "") -> str:
        number = max((int(one["number"]) for one in self.sets.values()), default=0) + 1
        directory = f"{self.store}/{number}"
        self.sets[name] = {"number": number, "properties": properties, "origin": origin, "deferred": False}
        return directory

    def directory(self, name: str) -> str:
        return f"{self.store}/{self.sets[name]['number']}"

    def create(self, name: str, mountpoint: str) -> None:
        os.mkdir(self.add(name, {"mountpoint": mountpoint}))
        self.save()
        self.mount(name)

    def mount(self, name: str) -> None:
        where = self.sets[name]["properties"]["mountpoint"]
        os.makedirs(where, exist_ok=True)
        bind(self.directory(name), where, MS_BIND)
        if self.sets[name]["properties"].get("readonly") == "on":
            bind(self.directory(name), where, MS_BIND | MS_REMOUNT | MS_RDONLY)

    def unmount(self, name: str) -> None:
        where = self.sets[name]["properties"].get("mountpoint", "none")
        if is_mounted_on(where):
            if _libc.umount2(os.fsencode(where), 0):
                fail(f"cannot unmount '{where}': pool or dataset is busy")
            os.rmdir(where)

    def known(self, name: str) -> dict[str, Any]:
        if name not in self.sets:
            fail(f"cannot open '{name}': dataset does not exist")
        return self.sets[name]

    def clones(self, snapshot: str) -> list[str]:
        return [name for name, one in self.sets.items() if one["origin"] == snapshot]

    def children(self, name: str) -> list[str]:
        return [other for other in self.sets if other.startswith((f"{name}/", f"{name}@"))]

    def destroy(self, name: str) -> None:
        import shutil

        directory, origin = self.directory(name), self.sets.pop(name)["origin"]
        shutil.rmtree(directory)
        if origin and self.sets[origin]["deferred"] and not self.clones(origin):
            self.destroy(origin)


def bind(source: str, target: str, flags: int) -> None:
    if _libc.mount(os.fsencode(source), os.fsencode(target), None, flags, None):
        fail(f"cannot mount '{target}': {os.strerror(ctypes.get_errno())}")


def options(words: list[str]) -> tuple[dict[str, str], list[str], list[str]]:
    """Properties, flags, and what is left."""
    properties: dict[str, str] = {}
    flags: list[str] = []
    while words and words[0].startswith("-"):
        flag, *words = words
        if flag == "-o":
            key, separator, value = words[0].partition("=")
            if not separator:
                fail(f"missing '=' for property=value argument '{words[0]}'", 2)
            properties[key] = value
            words = words[1:]
        else:
            flags.append(flag)
    return properties, flags, words


def snapshot(state: State, words: list[str]) -> None:
    properties, _, (name,) = options(words)
    of = name.partition("@")[0]
    if not _NAME.match(name) or len(name) > 255:
        fail(f"cannot create snapshot '{name}': invalid character in name")
    state.known(of)
    if name in state.sets:
        fail(f"cannot create snapshot '{name}': dataset already exists")
    copy(state.directory(of), state.add(name, properties))


def clone(state: State, words: list[str]) -> None:
    properties, _, (origin, name) = options(words)
    state.known(origin)
    if name in state.sets:
        fail(f"cannot create '{name}': dataset already exists")
    if not _NAME.match(name) or "@" in name or name.split("/")[0] != origin.split("/")[0]:
        fail(f"cannot create '{name}': source and target pools differ")
    if name.rpartition("/")[0] not in state.sets:
        fail(f"cannot create '{name}': parent does not exist")
    copy(state.directory(origin), state.add(name, properties, origin))
    state.save()
    state.mount(name)


def destroy(state: State, words: list[str]) -> None:
    _, flags, (name,) = options(words)
    if "@" in name:
        if name not in state.sets:
            fail("could not find any snapshots to destroy; check snapshot names.")
        if state.clones(name):
            if "-d" not in flags:
                fail(f"cannot destroy '{name}': snapshot has dependent clones")
            state.sets[name]["deferred"] = True
            return
    else:
        state.known(name)
        if state.children(name):
            fail(f"cannot destroy '{name}': filesystem has children\nuse '-r' to destroy the following datasets:")
        state.unmount(name)
    state.destroy(name)


def list_(state: State, words: list[str]) -> None:
    if words[0] != "-H":
        fail("only scripting mode is known here", 2)
    words = words[1:]
    recursive = words[0] == "-r"
    words = words[1:] if recursive else words
    if words[0] != "-t" or words[2] != "-o":
        fail("options in another order are not known here", 2)
    kind, columns, name = words[1], words[3].split(","), words[4]
    if name.startswith("/"):
        mounted = [one for one, about in state.sets.items() if is_mounted(about, name)]
        if not mounted:
            fail(f"cannot open '{name}': not a ZFS filesystem")
        name = mounted[0]
    state.known(name)
    for one in sorted([name, *(state.children(name) if recursive else ())]):
        if kind == "all" or "@" not in one:
            about = {"name": one, **state.sets[one]["properties"]}
            sys.stdout.write("\t".join(about.get(column, "-") for column in columns) + "\n")


def is_mounted(about: dict[str, Any], path: str) -> bool:
    where = about["properties"].get("mountpoint", "none")
    return where == path and is_mounted_on(path)


def is_mounted_on(path: str) -> bool:
    """(A bind mount is on the device of what is around it, so that `os.path.ismount` does not know it.)"""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        return any(line.split()[4].replace("\\040", " ") == path for line in file)


def mount(state: State, words: list[str]) -> None:
    (name,) = words
    if is_mounted_on(state.known(name)["properties"]["mountpoint"]):
        fail(f"cannot mount '{name}': filesystem already mounted")
    state.mount(name)


def set_(state: State, words: list[str]) -> None:
    assignment, name = words
    key, _, value = assignment.partition("=")
    properties = state.known(name)["properties"]
    if key == "mountpoint":
        state.unmount(name)
    properties[key] = value
    if key == "readonly" and is_mounted_on(properties.get("mountpoint", "none")):
        flags = MS_BIND | MS_REMOUNT | (MS_RDONLY if value == "on" else 0)
        bind(state.directory(name), properties["mountpoint"], flags)


def copy(source: str, target: str) -> None:
    child = os.posix_spawnp("cp", ["cp", "-a", "--", source, target], os.environ)
    if os.waitpid(child, 0)[1]:
        fail(f"cannot copy '{source}'")


def main(store: str, words: list[str]) -> None:
    """Be the program."""
    commands = {"snapshot": snapshot, "clone": clone, "destroy": destroy, "list": list_, "mount": mount, "set": set_}
    if not words or words[0] not in commands:
        fail(f"unrecognized command '{' '.join(words[:1])}'", 2)
    with open(f"{store}/lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = State(store)
        commands[words[0]](state, words[1:])
        state.save()
