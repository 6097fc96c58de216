"""A session inside a run: its commands are recorded already, like everything there, and are grouped into steps.

Nothing is supervised anew, and the keeper gets none of the requests for outsiders alone (`OUTSIDE_ONLY`). A command or
a write becomes a step as a hook's tool call does, by `UndoService.begin` and `commit`. While such a step is open, all
other changes in the workspace belong to it as well.
"""

from __future__ import annotations

import os
import subprocess
import threading
from typing import TYPE_CHECKING

from holdfast.engine.opening.undo_log import find_open_step
from holdfast.files.protected_directories import find_protected
from holdfast.model.errors import ChannelError, HoldfastError, NotFoundError, RefusedError
from holdfast.model.paths import display
from holdfast.processes.helper_process import start_module
from holdfast.processes.module_process import ProcessOutcome
from holdfast.processes.process_tree import end_child, hindered_seconds
from holdfast.supervisor.control.remote_service import visit
from holdfast.undo.local_service.file_writer import write_file
from holdfast.undo.safeguards.guard import NO_RISK
from holdfast.undo.service import StepOutcome
from holdfast.undo.tree.rooted_directories import Directories

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeVar

    from holdfast.engine.hosting.launcher import Launch
    from holdfast.undo.interceptor import Place
    from holdfast.undo.journal.records import FileType
    from holdfast.undo.safeguards.guard import Risk
    from holdfast.undo.service import StepInfo, UndoService

    T = TypeVar("T")


class InnerShim:
    """A shim that this process has started itself; for the rest see `Launcher`."""

    def __init__(self, launch: Launch) -> None:
        """Start it, and return when it exists: it must not belong to the first step. Raises `OSError`."""
        ready, its = os.pipe2(os.O_CLOEXEC)
        self._process = start_module(
            "holdfast.engine.hosting.shim_guard",
            str(its),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=launch.root,
            environment=launch.environment,
            pass_fds=[its],
        )
        os.close(its)
        os.read(ready, 1)
        os.close(ready)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.writer = self._process.stdin
        self.reader = self._process.stdout

    @property
    def is_over(self) -> bool:
        """See `Launcher.is_over`."""
        return self._process.poll() is not None

    def hindered_seconds(self) -> float:
        """See `Launcher.hindered_seconds`."""
        return hindered_seconds(self._process.pid)

    def wait(self, seconds: float) -> ProcessOutcome:
        """See `Launcher.wait`."""
        if end_child(self._process, seconds, patience=seconds):
            return ProcessOutcome(
                kind=ChannelError.__name__, code="shim_gone", message="the process that runs the commands was killed"
            )
        return ProcessOutcome()


class EnclosingRun:
    """The run that this process belongs to, and the step in it that is open. Any thread may call."""

    def __init__(self, run: str, root: bytes, log: bytes, own: Sequence[bytes]) -> None:
        """``root`` and ``log`` are the directories of the workspace and of its undo log; in the directories ``own``
        nothing is written for clients.
        """
        self.run = run
        self._root = root
        self._undo_log = log
        self._own = own
        self._lock = threading.Lock()
        self._step = 0
        self._is_ours = False
        self._users = 0
        """Commands and writes in progress: they share a step, since concurrent ones cannot be separated."""

    def launch(self, launch: Launch) -> InnerShim:
        """Start the shim. Raises `RefusedError` if the run records nothing in this workspace, and `OSError`."""
        self.require_served()
        return InnerShim(launch)

    def require_served(self) -> None:
        """Raise `RefusedError` if the run records nothing in this workspace."""
        keeper = visit(self._undo_log)
        if keeper is not None:
            with keeper:
                if keeper.serves(self.run):
                    return
        raise RefusedError(
            f"the run {self.run}, to which this process belongs, records nothing in {display(self._root)}: it is over, "
            "or one in another workspace",
            hint="start the client by `holdfast run` in this workspace; elsewhere its changes could not be undone",
            code="other_run",
        )

    def begin(self, keeper: UndoService, label: str) -> int:
        """Open a step, or share the open one; its id."""
        with self._lock:
            if not self._users:
                opened = find_open_step(keeper, self.run)
                self._is_ours = opened is None
                self._step = keeper.begin(label.encode("utf-8", "replace").decode()) if opened is None else opened.id
            self._users += 1
            return self._step

    def settle(self, keeper: UndoService, step: int, *, take_back: bool = False) -> StepOutcome:
        """Note the end of a command or write: the last one that shares the step closes it, if it was opened here.

        ``take_back``: and rolls it back, if it has changes.
        """
        with self._lock:
            self._users -= 1
            is_denied = False
            if self._is_ours and not self._users:
                try:
                    opened = find_open_step(keeper, self.run)
                    if take_back and opened is not None and opened.id == step and opened.paths:
                        keeper.rollback(step)
                    else:
                        keeper.commit(step)
                except (NotFoundError, RefusedError) as error:
                    is_denied = error.code == "denied"
            return StepOutcome(info=next((info for info in keeper.steps() if info.id == step), None), denied=is_denied)

    def write(self, keeper: UndoService, path: bytes, content: int, expected: bytes | None) -> StepInfo | None:
        """`UndoService.write` by this process itself: it is recorded, and held, like all changes here."""
        step = self.begin(keeper, f"write {display(path)}")
        root = -1
        recorded = _Recorded()
        try:
            root = os.open(self._root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            directories = Directories(root)
            try:
                write_file(recorded, directories, find_protected(self._own), step, path, content, expected)
            finally:
                directories.close()
        except (HoldfastError, OSError) as error:
            if self.settle(keeper, step, take_back=not recorded.is_spared).denied:
                raise RefusedError(f"{display(path)} was not written: it was denied", code="denied") from error
            raise
        finally:
            if root >= 0:
                os.close(root)
        return self.settle(keeper, step).info


class _Recorded:
    """Where every call passes the supervisor, nothing is left to do before it."""

    is_spared = False
    """A file was left as another process has changed it: its former content must not be restored."""

    def create(self, step: int, place: Place, type_: FileType, perform: Callable[[], T]) -> T:
        """See `Interceptor.create`."""
        del step, place, type_
        return perform()

    def before_open(self, step: int, place: Place, fd: int, risk: Risk = NO_RISK) -> bool:
        """See `Interceptor.before_open`."""
        del step, place, fd, risk
        return True

    def cancel_open(self, step: int, fd: int) -> bool:
        """See `Interceptor.cancel_open`. The supervisor has preserved the content that the opening would lose, and
        cannot take that back.
        """
        del step, fd
        self.is_spared = True
        return False
