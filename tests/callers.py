"""Histories of simulated processes that are served by one keeper, over the recorder, the journal and the settling.

A history is a list of moves, each a name and three numbers that choose among what there is: so any of them can be left
out, and what is left is a history as well. Descriptors and mappings are this process's own, and real: the kernel tells
of their writers what it tells of anybody's.
"""

from __future__ import annotations

import mmap
import os
import random
import re
import shutil
import stat
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from holdfast.files.linux.file_handle import Identity, identity
from holdfast.files.linux.metadata import proc_path
from holdfast.model.clock import SystemClock
from holdfast.model.errors import HeldError, RefusedError
from holdfast.testing.tree_actor import InterceptedActor
from holdfast.testing.tree_state import PathState, differences, photograph
from holdfast.undo.interceptor import Place
from holdfast.undo.journal.records import StepId
from holdfast.undo.journal.step_footprint import DirectoryMoves
from holdfast.undo.local_service.undo_service import LocalUndoService
from holdfast.undo.log import UndoLog
from holdfast.undo.recovery.keeper_recovery import recover
from holdfast.undo.safeguards.guard import risk_of
from holdfast.undo.safeguards.tickets import Safeguards
from holdfast.undo.service import OFF, Thresholds

from .waiting import wait_until

DIRECTORIES = (b"d", b"e", b"d/g")
FILES = (b"f", b"x", b"d/y", b"e/y", b"d/g/z", b"d/x", b"n", b"e/n")
_RUN = "run"
_WENT = ("it is not there any more", "something else is there now")
_REST_NS = 25_000_000
_MARK = re.compile(rb"<\d+>")
_LOOK = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK

Move: TypeAlias = tuple[str, int, int, int]


class Caller:
    """One process: what it has open and mapped, and the group whose step its changes belong to."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.held: list[tuple[int, bool]] = []
        """Descriptors, and whether they can be written to."""
        self.maps: list[tuple[mmap.mmap, int]] = []
        """Shared mappings, and the inode numbers of their files."""

    def close(self) -> None:
        """Let everything go, as a process does that ends."""
        for fd, _ in self.held:
            os.close(fd)
        for mapped, _ in self.maps:
            mapped.close()
        self.held, self.maps = [], []


class Group:
    """What has a step of its own: a child of the agent with all below it, or the agent itself."""

    step: StepId = 0
    barred = False
    """A person has denied what it did: it changes nothing any more."""


class Failure(AssertionError):
    """Something was taken for somebody else's, or was not brought back."""


class Callers:
    """See the module. One thread does it all, so that a history is what its moves are."""

    def __init__(self, base: Path, *, is_crowded: bool = False) -> None:
        """``is_crowded``: so much is open that nobody looks at all of it when a step ends. ``base`` may be that of
        histories before: their log goes on.
        """
        self.tree = base / "tree"
        shutil.rmtree(self.tree, ignore_errors=True)
        for name in DIRECTORIES:
            (self.tree / os.fsdecode(name)).mkdir(parents=True)
        for name in FILES[:5]:
            (self.tree / os.fsdecode(name)).write_bytes(b"orig " + name)
        os.link(self.tree / "f", self.tree / "d/x")
        self._is_crowded = is_crowded
        self._where = os.fsencode(base / "log")
        self._root = os.open(self.tree, os.O_RDONLY | os.O_DIRECTORY)
        self._callers: list[Caller] = []
        self._pending: list[Callable[[], object]] = []
        """What the second thread of the keeper has still to do."""
        self._is_exact = True
        """Nothing was denied that others had changed since: what belongs there lies aside then."""
        self._is_dated = True
        """Nothing was reversed beside a step that went on, or redone after a later one, and none has set the mode, the
        mtime or an attribute of a directory, or moved one while another step went on: the mtime of one in which others
        change names is not always brought back exactly then.
        """
        self._has_rolled_back = False
        """A step was: then another one that went on beside it may be refused."""
        self.first = photograph(self.tree)
        self.edits = 0
        """How often somebody who is not served has edited something."""
        self.refused = ""
        self._news: list[tuple[bytes, Identity]] = []
        """Edits that are not told yet: what is told comes late."""
        self._keep()

    def _keep(self) -> None:
        safeguards = Safeguards(SystemClock())
        self.log = UndoLog(self._where, self._root, SystemClock(), safeguards)
        recovered = recover(self.log)
        _check(recovered.rolled_back is None and not recovered.finished, f"{recovered}")
        self.service = LocalUndoService(self.log, safeguards, intercepts=True)
        self.log.writers = self._writers
        self.log.flush_foreign_edits = self._tell
        self.log.recorder.on_contact = lambda _changed, _is_own: self._tell()

    def close(self) -> None:
        """Let everything go, whatever has failed."""
        for caller in self._callers:
            caller.close()
        self.service.discard()
        self.log.close()
        os.close(self._root)

    def _writers(self, thorough: bool) -> frozenset[int] | None:
        if self._is_crowded and not thorough:
            return None
        found = {os.fstat(fd).st_ino for caller in self._callers for fd, writes in caller.held if writes}
        return frozenset(found | {inode for caller in self._callers for _, inode in caller.maps})

    # Moves ------------------------------------------------------------------------------------------------------

    def make(self, move: Move) -> None:
        """Make one move; nothing if there is nothing that it could be made with."""
        name, a, b, c = move
        way = getattr(self, f"_{name}")
        if name in MOVES_OF_CALLERS:
            if self._callers and not (caller := self._callers[a % len(self._callers)]).group.barred:
                with suppress(OSError):
                    way(caller, b, c)
        else:
            way(a, b, c)
        self._check_alone()
        going_on = self.log.recorder.open_steps
        if len(going_on) > 1 and any(DirectoryMoves(step.records) for step in going_on):
            self._is_dated = False

    def _check_alone(self) -> None:
        if not self.edits:
            found = [(barrier.paths, barrier.who, barrier.after) for barrier in self.service.barriers()]
            _check(not found, f"a barrier: {found}")

    def _actor(self, caller: Caller) -> InterceptedActor:
        explicit = self.service.explicit_step(_RUN)
        step = explicit
        if step is None:
            if not caller.group.step:
                caller.group.step = self.service.open("command", run=_RUN)
            step = caller.group.step
        return InterceptedActor(self.log.recorder, os.fsencode(self.tree), step)

    def _check_is_file(self, number: int) -> None:
        """Pipes are opened in another way."""
        path = self.tree / os.fsdecode(_file(number))
        if path.is_fifo():
            raise OSError

    # A caller's --------------------------------------------------------------------------------------------------

    def _open(self, caller: Caller, b: int, c: int) -> None:
        flags = (os.O_RDWR, os.O_RDWR | os.O_CREAT, os.O_RDWR | os.O_CREAT | os.O_TRUNC)[c % 3]
        with self._actor(caller) as actor:
            self._check_is_file(b)
            caller.held.append((actor.open(_file(b), flags), True))

    def _read(self, caller: Caller, b: int, c: int) -> None:
        del c
        caller.held.append((os.open(self.tree / os.fsdecode(_file(b)), _LOOK), False))

    def _write(self, caller: Caller, b: int, c: int) -> None:
        with self._actor(caller) as actor:
            self._check_is_file(b)
            fd = actor.open(_file(b), os.O_WRONLY | os.O_CREAT | (0, os.O_TRUNC)[c % 2])
            os.write(fd, b"%d" % c)
            os.close(fd)

    def _write_late(self, caller: Caller, b: int, c: int) -> None:
        if fd := _writable(caller, b):
            os.pwrite(fd, b"late %d" % c, c % 7)

    def _cut_late(self, caller: Caller, b: int, c: int) -> None:
        if fd := _writable(caller, b):
            os.ftruncate(fd, c % 9)

    def _map(self, caller: Caller, b: int, c: int) -> None:
        if (fd := _writable(caller, b)) and (size := os.fstat(fd).st_size):
            caller.maps.append((mmap.mmap(fd, size), os.fstat(fd).st_ino))
            if c % 2:
                _drop(caller, fd)

    def _store(self, caller: Caller, b: int, c: int) -> None:
        if caller.maps:
            mapped, inode = caller.maps[b % len(caller.maps)]
            # (Beyond the end of a file that was cut short meanwhile it is a SIGBUS.)
            if mapped.size() >= len(mapped):
                mapped[0] = 48 + c % 10
            del inode

    def _close(self, caller: Caller, b: int, c: int) -> None:
        del c
        if caller.held:
            _drop(caller, caller.held[b % len(caller.held)][0])

    def _unmap(self, caller: Caller, b: int, c: int) -> None:
        del c
        if caller.maps:
            caller.maps.pop(b % len(caller.maps))[0].close()

    def _reopen(self, caller: Caller, b: int, c: int) -> None:
        """By a link of ``/proc/self/fd``, also what has no name any more."""
        if not caller.held:
            return
        fd = caller.held[b % len(caller.held)][0]
        place, flags = self._place_of(fd), os.O_RDWR | (0, os.O_TRUNC)[c % 2]
        with self._actor(caller) as actor, _opened(fd) as found:
            if place is not None:
                self.log.recorder.before_open(actor.step, place, found, risk_of(flags))
            elif not self.log.recorder.release_removed(actor.step, found):
                return
            again = os.open(proc_path(found), flags)
            caller.held.append((again, True))

    def _change_open(self, caller: Caller, b: int, c: int) -> None:
        """``fchmod`` and its like."""
        if not caller.held:
            return
        fd = caller.held[b % len(caller.held)][0]
        place = self._place_of(fd)
        with self._actor(caller) as actor, _opened(fd) as found:
            if place is not None:
                self.log.recorder.before_metadata_change(actor.step, place, found)
            elif not self.log.recorder.release_removed(actor.step, found):
                return
            os.chmod(fd, (0o600, 0o644, 0o755)[c % 3])

    def _link_open(self, caller: Caller, b: int, c: int) -> None:
        """``linkat`` of a descriptor: of a file that never had a name, too."""
        if c % 2:
            caller.held.append((os.open(self.tree, os.O_TMPFILE | os.O_RDWR, 0o644), True))
            os.write(caller.held[-1][0], b"nameless")
        if not caller.held:
            return
        fd = caller.held[-1][0]
        with self._actor(caller) as actor:
            path = os.path.join(os.fsencode(self.tree), _file(b))
            with _opened(os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY), is_ours=True) as directory:
                place = Place(directory, os.path.basename(path), _file(b))
                self.log.recorder.link(
                    actor.step, fd, place, lambda: os.link(proc_path(fd), path, follow_symlinks=True)
                )

    def _unlink(self, caller: Caller, b: int, c: int) -> None:
        del c
        with self._actor(caller) as actor:
            actor.unlink(_file(b))

    def _rename(self, caller: Caller, b: int, c: int) -> None:
        with self._actor(caller) as actor:
            actor.rename(_file(b), _file(c))

    def _save(self, caller: Caller, b: int, c: int) -> None:
        """As editors do: written anew beside it, and renamed over it."""
        with self._actor(caller) as actor:
            actor.write(_file(b) + b"~", b"saved %d" % c)
            actor.rename(_file(b) + b"~", _file(b))

    def _exchange(self, caller: Caller, b: int, c: int) -> None:
        with self._actor(caller) as actor:
            actor.exchange(_file(b), _file(c))

    def _link(self, caller: Caller, b: int, c: int) -> None:
        with self._actor(caller) as actor:
            actor.link(_file(b), _file(c))

    def _truncate(self, caller: Caller, b: int, c: int) -> None:
        with self._actor(caller) as actor:
            self._check_is_file(b)
            actor.truncate(_file(b), c % 20)

    def _chmod(self, caller: Caller, b: int, c: int) -> None:
        self._describe(b)
        with self._actor(caller) as actor:
            actor.chmod(_any(b), (0o600, 0o644, 0o700, 0o755)[c % 4])

    def _utime(self, caller: Caller, b: int, c: int) -> None:
        self._describe(b)
        with self._actor(caller) as actor:
            actor.utime(_any(b), 10**18 + c)

    def _setxattr(self, caller: Caller, b: int, c: int) -> None:
        self._describe(b)
        with self._actor(caller) as actor:
            actor.setxattr(_any(b), "user.a", b"%d" % (c % 3))

    def _describe(self, number: int) -> None:
        self._is_dated = self._is_dated and not (self.tree / os.fsdecode(_any(number))).is_dir()

    def _symlink(self, caller: Caller, b: int, c: int) -> None:
        with self._actor(caller) as actor:
            actor.symlink(_file(c), _file(b))

    def _mkfifo(self, caller: Caller, b: int, c: int) -> None:
        del c
        with self._actor(caller) as actor:
            actor.mkfifo(_file(b))

    def _mkdir(self, caller: Caller, b: int, c: int) -> None:
        with self._actor(caller) as actor:
            actor.mkdir((DIRECTORIES + FILES)[b % 5] if c % 4 else _file(b))

    def _rmdir(self, caller: Caller, b: int, c: int) -> None:
        del c
        with self._actor(caller) as actor:
            actor.rmdir(_any(b))

    def _clear(self, caller: Caller, b: int, c: int) -> None:
        """As ``rm -r``."""
        del c
        with self._actor(caller) as actor:
            directory = DIRECTORIES[b % len(DIRECTORIES)]
            for path in [path for path in (*DIRECTORIES, *FILES) if path.startswith(directory + b"/")]:
                with suppress(OSError):
                    actor.unlink(path)
            for path in sorted(DIRECTORIES, reverse=True):
                if path == directory or path.startswith(directory + b"/"):
                    with suppress(OSError):
                        actor.rmdir(path)

    def _rename_directory(self, caller: Caller, b: int, c: int) -> None:
        with self._actor(caller) as actor:
            actor.rename(DIRECTORIES[b % len(DIRECTORIES)], (*DIRECTORIES, b"m", b"e/m")[c % 5])

    def _rename_back(self, caller: Caller, b: int, c: int) -> None:
        with self._actor(caller) as actor:
            actor.rename((b"m", b"e/m")[b % 2], DIRECTORIES[c % len(DIRECTORIES)])

    def _exchange_directories(self, caller: Caller, b: int, c: int) -> None:
        with self._actor(caller) as actor:
            actor.exchange(DIRECTORIES[b % len(DIRECTORIES)], DIRECTORIES[c % len(DIRECTORIES)])

    # An outsider's -----------------------------------------------------------------------------------------------

    def edit(self, number: int) -> None:
        """Somebody who is not served appends to a file; it is told of when somebody asks, as by a watcher."""
        path = self.tree / os.fsdecode(_file(number))
        if path.is_symlink() or not path.is_file():
            return
        self.edits += 1
        with open(path, "ab") as file:
            file.write(b"<%d>" % self.edits)
        root = os.open(self.tree, os.O_RDONLY | os.O_DIRECTORY)
        self._news.append((_file(number), identity(root, _file(number))))
        os.close(root)

    def _tell(self) -> None:
        news, self._news = self._news, []
        for path, object_ in news:
            self.service.record_foreign_edit([path], "vim (12)", objects=[object_])

    def _marks(self) -> set[bytes]:
        """Which edits are in the tree."""
        if not self.edits:
            return set()
        return {mark for one in photograph(self.tree).values() for mark in _MARK.findall(one.content)}

    # Processes and steps -----------------------------------------------------------------------------------------

    def _start(self, a: int, b: int, c: int) -> None:
        """A process with a group of its own, that inherits what another one has open, if ``c`` says so."""
        if len(self._callers) < 5:
            caller = Caller(Group())
            if self._callers and c % 2:
                caller.held = [(os.dup(fd), writes) for fd, writes in self._callers[a % len(self._callers)].held]
            del b
            self._callers.append(caller)

    def _fork(self, a: int, b: int, c: int) -> None:
        """A process in the same group."""
        del b, c
        if self._callers and len(self._callers) < 5:
            parent = self._callers[a % len(self._callers)]
            child = Caller(parent.group)
            child.held = [(os.dup(fd), writes) for fd, writes in parent.held]
            self._callers.append(child)

    def _exit(self, a: int, b: int, c: int) -> None:
        """A process ends; with the last one of a group, its step, after (or before: late) it has closed its files."""
        del b
        if not self._callers:
            return
        caller = self._callers.pop(a % len(self._callers))
        is_last = all(other.group is not caller.group for other in self._callers)
        if c % 3:
            caller.close()
        if is_last:
            self._end(caller.group)
        caller.close()

    def _pause(self, a: int, b: int, c: int) -> None:
        """A step ends while its processes go on."""
        del b, c
        if self._callers:
            self._end(self._callers[a % len(self._callers)].group)

    def _end(self, group: Group) -> None:
        step, group.step = group.step, 0
        if step and (finish := self.service.begin_close(step, 0)) is not None:
            self._pending.append(finish)

    def _finish(self, a: int, b: int, c: int) -> None:
        del a, b
        for finish in self._pending[: 1 + c % 3]:
            self._pending.remove(finish)
            finish()

    def _finish_all(self) -> None:
        while self._pending:
            self._pending.pop(0)()

    def _tick(self, a: int, b: int, c: int) -> None:
        """What the second thread does a few times a second, after what it was asked to do before."""
        del a, b, c
        self._finish_all()
        self._tell()
        self.service.tick()

    def _rest(self, a: int, b: int, c: int) -> None:
        """For so long that the clock of the file system has moved on."""
        del a, b, c
        since = time.time_ns()
        wait_until(lambda: time.time_ns() - since > _REST_NS)

    def _deny(self, a: int, b: int, c: int) -> None:
        """A caller is about to remove something, and a person says no."""
        del c
        if not self._callers or (caller := self._callers[a % len(self._callers)]).group.barred:
            return
        self.service.guard(Thresholds(deletes=1))
        explicit = self.service.explicit_step(_RUN)
        try:
            with self._actor(caller) as actor:
                actor.unlink(_file(b))
        except HeldError as held:
            self._finish_all()
            self._note(self.service.answer(held.ticket, allow=False).conflicts)
            if explicit is None:
                caller.group.barred = True
        except OSError:
            pass
        finally:
            self.service.guard(OFF)

    def _note(self, conflicts: Sequence[object]) -> None:
        self._has_rolled_back = True
        # (What is written later through what it has open is not taken back either; nor is it exact where a step that
        # goes on has done more to the same meanwhile.)
        if conflicts or self.log.recorder.open_steps or any(caller.held or caller.maps for caller in self._callers):
            self._is_exact = False

    def _forgive(self, a: int, b: int, c: int) -> None:
        """Another process, which may do what it wants, where one was barred."""
        del b, c
        if self._callers and (caller := self._callers[a % len(self._callers)]).group.barred:
            caller.close()
            self._callers.remove(caller)
            if all(other.group is not caller.group for other in self._callers):
                self._end(caller.group)

    def _begin(self, a: int, b: int, c: int) -> None:
        del a, b, c
        if self.service.explicit_step(_RUN) is None:
            self.service.begin("")

    def _commit(self, a: int, b: int, c: int) -> None:
        del a, b
        if (step := self.service.explicit_step(_RUN)) is not None:
            self._finish_all()
            if c % 3:
                self.service.commit(step)
            else:
                self._note(self.service.rollback(step).conflicts)

    # A person's --------------------------------------------------------------------------------------------------

    def _undo(self, a: int, b: int, c: int) -> None:
        if b % 2:
            self._finish_all()
        done = [step.id for step in self.service.steps() if step.state == "done"]
        if not done:
            return
        chosen = self.service.connected(done[a % len(done)] if c % 4 == 0 else done[-1])
        before = photograph(self.tree)
        if not self._reverse("undo", chosen):
            return
        if c % 2:
            if self._reverse("redo", chosen):
                self._check_tree(before, "undone and redone at once")
            else:
                _check("open for writing" in self.refused, f"what was just undone is not redone, {self.refused}")

    def _redo(self, a: int, b: int, c: int) -> None:
        if c % 2:
            self._finish_all()
        undone = [
            step.id for step in self.service.steps() if step.state == "undone" and not self.service.conflicts(step.id)
        ]
        if undone:
            del b
            self._reverse("redo", self.service.connected(undone[a % len(undone)]))

    def _reverse(self, way: str, steps: Sequence[StepId]) -> bool:
        self._tell()
        # (A step may have removed what it came upon: redo removes it again.)
        edited = self._marks() if way == "undo" else set[bytes]()
        self._is_dated = self._is_dated and not self.log.recorder.open_steps
        if way == "redo" and any(step.state == "done" and step.id > min(steps) for step in self.service.steps()):
            self._is_dated = False
        try:
            report = getattr(self.service, way)(steps)
        except RefusedError as refused:
            _check(refused.code != "barrier" or self.edits > 0, f"{way} {steps}: {refused.message}")
            self.refused = f"{refused.code}: {refused.message}"
            return False
        # (What a step that was rolled back had made or moved went with it, and what others had done to that is said.)
        is_gone = self._has_rolled_back and way == "undo"
        conflicts = [met for met in report.conflicts if not (is_gone and met.reason in _WENT)]
        _check(not (conflicts and self._is_exact), f"{way} {steps}: {conflicts}")
        self._is_exact = self._is_exact and not report.conflicts
        _check(edited <= self._marks(), f"{way} {steps}: an edit is lost: {edited - self._marks()}")
        return True

    def _restart(self, a: int, b: int, c: int) -> None:
        """All ends, and with it the keeper; another one begins."""
        del a, b, c
        self._end_all()
        self.log.close()
        self._keep()

    def _end_all(self) -> None:
        if (step := self.service.explicit_step(_RUN)) is not None:
            self._finish_all()
            self.service.commit(step)
        for caller in self._callers:
            self._end(caller.group)
            caller.close()
        self._callers.clear()
        self._finish_all()
        self._tell()
        self.service.settle()
        _check(not self.log.unsettled, f"not settled: {self.log.unsettled}")

    # The end -----------------------------------------------------------------------------------------------------

    def finish(self, way: int) -> None:
        """End everything; then all that is done is undone, and brought forward again, exactly."""
        self._end_all()
        self._check_alone()
        if way % 2:
            self.log.close()
            self._keep()
        last = photograph(self.tree)
        sets: list[list[StepId]] = []
        while done := [step for step in self.service.steps() if step.state == "done"]:
            newest = max(done, key=lambda step: step.acted).id
            chosen = [step.id for step in done] if way % 3 == 0 else list(self.service.connected(newest))
            if not self._reverse("undo", chosen):
                is_beneath = self._has_rolled_back and self.refused.startswith("step_rolled_back")
                _check(self.edits > 0 or is_beneath, f"{chosen} cannot be undone, {self.refused}")
                return
            sets.append(chosen)
        self._check_tree(self.first, "all undone")
        for chosen in reversed(sets):
            if any(self.service.conflicts(step) for step in chosen):
                return
            if not self._reverse("redo", chosen):
                # (What was undone or denied before, and had to do with the same, would have to come with it.)
                _check(self.refused.startswith("steps_connected"), f"{chosen} cannot be redone, {self.refused}")
                return
        self._check_tree(last, "all redone")

    def _check_tree(self, expected: dict[bytes, PathState], what: str) -> None:
        if self._is_exact and not self.edits:
            now = photograph(self.tree)
            for path in [path for path in expected.keys() & now.keys() if stat.S_ISDIR(now[path].mode)]:
                if not self._is_dated:
                    now[path] = now[path]._replace(mtime=expected[path].mtime)
            found = differences(expected, now)
            _check(not found, f"{what}, and not exact: {found}")

    def _place_of(self, fd: int) -> Place | None:
        """Where what is open is by now, as the supervisor finds out; None if it has no name in the tree."""
        path = os.fsencode(os.readlink(proc_path(fd)))
        top = os.fsencode(self.tree) + b"/"
        if not path.startswith(top) or not os.path.lexists(path):
            return None
        directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
        self._callers[0].held.append((directory, False))  # (closed with it)
        with _opened(fd) as found:
            if identity(directory, os.path.basename(path)) != identity(found, b""):
                return None
        return Place(directory, os.path.basename(path), path[len(top) :])


class _opened:
    """The object of a descriptor, as one that only refers to it."""

    def __init__(self, fd: int, *, is_ours: bool = False) -> None:
        self._fd = fd if is_ours else os.open(proc_path(fd), os.O_PATH)

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def _check(condition: bool, what: str) -> None:
    if not condition:
        raise Failure(what)


def _file(number: int) -> bytes:
    return FILES[number % len(FILES)]


def _any(number: int) -> bytes:
    paths = (*FILES, *DIRECTORIES)
    return paths[number % len(paths)]


def _writable(caller: Caller, number: int) -> int:
    found = [fd for fd, writes in caller.held if writes]
    return found[number % len(found)] if found else 0


def _drop(caller: Caller, fd: int) -> None:
    caller.held = [one for one in caller.held if one[0] != fd]
    os.close(fd)


MOVES_OF_CALLERS = (
    "open", "read", "write", "write_late", "cut_late", "map", "close", "unmap", "reopen", "change_open",
    "link_open", "unlink", "rename", "save", "exchange", "link", "truncate", "chmod", "utime", "setxattr", "symlink",
    "mkfifo", "mkdir", "rmdir", "clear", "rename_directory", "rename_back", "exchange_directories",
)  # fmt: skip
WEIGHTS = {
    "open": 8, "write": 6, "write_late": 6, "unlink": 8, "close": 5, "rename": 4, "save": 3, "link": 3,
    "start": 6, "fork": 3, "exit": 6, "pause": 4, "finish": 3, "tick": 4, "undo": 3, "redo": 2,
    "begin": 1, "commit": 2, "deny": 1, "forgive": 1, "restart": 1,
}  # fmt: skip
MOVES = (
    *MOVES_OF_CALLERS, "start", "fork", "exit", "pause", "finish", "tick", "deny", "forgive", "begin", "commit", "undo",
    "redo", "restart",
)  # fmt: skip


def moves(seed: int) -> list[Move]:
    """A history."""
    chance = random.Random(seed)
    # (Each leaves some kinds out, so that those that are left meet more often.)
    kinds = [name for name in MOVES if name in ("start", "exit") or chance.random() < 0.6]
    weights = [WEIGHTS.get(name, 2) for name in kinds]
    some = chance.choices(kinds, weights, k=chance.randrange(4, 50))
    # (So do few paths.)
    hot = [chance.randrange(1000) for _ in range(chance.choice((1, 2, 3, 5, 20)))]

    def path() -> int:
        return chance.choice(hot) if chance.random() < 0.8 else chance.randrange(1000)

    def move(name: str) -> Move:
        return name, chance.randrange(1000), path(), chance.choice((path(), chance.randrange(1000)))

    return [("start", 0, 0, 0), *map(move, some)]
