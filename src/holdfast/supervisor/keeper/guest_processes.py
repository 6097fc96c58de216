"""The command that a guest's process belongs to: the guest answers that, by a port of its machine.

A line ``PID`` is a question; the guest answers with a JSON object with the same ``pid``. If that process is below a
command of the shim, ``top`` is the child of the command's first process that it is or is below (0: it is that first
process), with its ``words`` and ``directory`` (base64); otherwise there is no ``top``. ``{"ended": TOP}`` reports,
without a question, the end of such a child. A process whose kernel request waits for the answer cannot end, so the
answer is about that process.

A guest may send anything, but it can only assign its own changes to another of its own steps. Its data is limited, and
a guest that violates the protocol, or does not answer in time, is not asked any more.
"""

from __future__ import annotations

import binascii
import socket
import threading
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from holdfast.model.decoders import json_decoder
from holdfast.model.errors import FormatError
from holdfast.model.log import Log
from holdfast.supervisor.process_tree.members import StepGroup
from holdfast.wire.json_lines import Lines

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.supervisor.process_tree.members import Run

_LOG = Log(__name__)
_MOST_LINE_BYTES: Final = 1 << 15
"""Our own guest sends at most 28 KiB. One answer to a client that asks for steps may contain all data from a guest."""
_MOST_WORDS: Final = 100
_MOST_GROUPS: Final = 4096
_READ_BYTES: Final = 1 << 14
_MOST_USELESS: Final = 1000
"""Lines that answer no question."""
_ANSWER_SECONDS: Final = 5.0
_MOST_SILENCES: Final = 3
"""Consecutive ones; a machine may be paused while it is asked."""

_Pid = Annotated[int, msgspec.Meta(ge=0, le=1 << 22)]


class _Said(msgspec.Struct, frozen=True):
    """A line of the guest's."""

    pid: _Pid = 0
    top: _Pid | None = None
    words: Annotated[tuple[str, ...], msgspec.Meta(max_length=_MOST_WORDS)] = ()
    directory: str = ""
    ended: _Pid = 0


class GuestProcesses:
    """The processes of one machine's guest, as far as the run's steps need them. Any thread may ask."""

    def __init__(self, port: socket.socket, run: Run, ended: Callable[[StepGroup], object]) -> None:
        """``port`` is taken over. ``ended`` is called, by a thread of this one's, for each group of which the first
        process has ended.
        """
        self._port = port
        self._run = run
        self._ended = ended
        self._lines = Lines(_MOST_LINE_BYTES)
        self._groups: dict[int, StepGroup] = {}
        """By their first process."""
        self._known: dict[int, StepGroup] = {}
        """Of threads that were asked about, until `forget_threads`."""
        self._asking = threading.Lock()
        self._asked = 0
        self._silences = 0
        self._useless = 0
        self._news = threading.Condition()
        self._is_over = False
        self._thread = threading.Thread(target=self._listen, name="holdfast-guest", daemon=True)
        self._thread.start()

    def group(self, thread: int) -> StepGroup:
        """The group of a thread that waits for the answer to a request. Waits for the guest."""
        group = self._known.get(thread)
        if group is not None:
            return group
        with self._asking, self._news:
            if not self._is_over and thread not in self._known:
                self._ask(thread)
            return self._known.get(thread, self._run.agents)

    def _ask(self, thread: int) -> None:
        """With both locks."""
        self._asked = thread
        question = b"%d\n" % thread
        try:
            # A guest may send without reading. Waiting for it would block while other threads wait for us.
            if self._port.send(question, socket.MSG_DONTWAIT) < len(question):
                raise BlockingIOError
        except BlockingIOError:
            self._give_up("it does not read what it is asked")
        except OSError:
            self._is_over = True
        is_told = self._news.wait_for(lambda: self._is_over or thread in self._known, _ANSWER_SECONDS)
        self._silences = 0 if is_told else self._silences + 1
        if self._silences >= _MOST_SILENCES:
            self._give_up("it does not say which process a change is by")

    def forget_threads(self) -> None:
        """To be called a few times a second: the numbers of threads come back."""
        with self._news:
            self._known.clear()

    def close(self) -> None:
        """Ask no more."""
        with self._news:
            self._is_over = True
            self._news.notify_all()
        self._hang_up()
        self._thread.join()
        self._port.close()

    def _listen(self) -> None:
        try:
            while data := self._port.recv(_READ_BYTES):
                self._lines.feed(data)
                while (line := self._lines.take()) is not None:
                    self._take(json_decoder(_Said).decode(line))
        except OSError:
            pass  # the machine has ended
        except (FormatError, msgspec.MsgspecError, ValueError, RecursionError) as error:
            self._give_up(f"it does not keep to the protocol: {error}")
        with self._news:
            self._is_over = True
            self._news.notify_all()

    def _take(self, said: _Said) -> None:
        """Raises `FormatError` for a guest that says too much."""
        with self._news:
            group = self._groups.pop(said.ended, None)
            if group is not None:
                self._known = {thread: each for thread, each in self._known.items() if each is not group}
            elif not said.ended and said.pid == self._asked:
                self._known[said.pid] = self._group_of(said)
                self._news.notify_all()
            else:
                self._useless += 1
                if self._useless > _MOST_USELESS:
                    raise FormatError("it says again and again what nothing has asked for")
        if group is not None:
            group.live = 0
            self._ended(group)

    def _group_of(self, said: _Said) -> StepGroup:
        run = self._run
        if said.top is None:
            return run.ambient
        if not said.top:
            return run.agents
        group = self._groups.get(said.top)
        if group is None:
            if len(self._groups) >= _MOST_GROUPS:
                return run.agents
            # Negative: it is no process of this system.
            self._groups[said.top] = group = StepGroup(run, -said.top)
            group.command = tuple(binascii.a2b_base64(word) for word in said.words)
            group.directory = binascii.a2b_base64(said.directory)
            group.live = 1
        return group

    def _give_up(self, why: str) -> None:
        if not self._is_over:
            _LOG.warning("the commands of a virtual machine are not told apart any more: %s", why)
        self._is_over = True
        self._hang_up()

    def _hang_up(self) -> None:
        try:
            self._port.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the machine has ended
