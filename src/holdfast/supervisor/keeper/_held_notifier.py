"""Runs the user's command for notices about waiting safeguards (``safeguard.notify``).

The command is a child of the keeper, outside of every tree, in the root directory. Supervised processes cannot
influence it: it has no file in the workspace, ``PATH`` is searched without directories there, and variables that name a
place there are removed. Such a variable could make the command load an agent's file.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from typing import TYPE_CHECKING

from holdfast.model.errors import HoldfastError
from holdfast.model.log import Log
from holdfast.model.message_text import visible
from holdfast.model.paths import display, under
from holdfast.processes.child_environment import inherited_environment

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.supervisor.keeper.keeper_settings import KeeperSettings
    from holdfast.undo.service import TicketInfo

_LOG = Log(__name__)
_MOST = 16
"""The most to run at a time: a loop of denied requests starts no more."""
_MOST_ERRORS = 2000


class HeldNotifier:
    """Starts the command, once for each ticket. From any thread."""

    def __init__(self, settings: KeeperSettings) -> None:
        self._words = settings.notify
        self._home = settings.home
        self._roots = tuple({settings.root, os.path.realpath(settings.root)})
        self._named = re.compile(b"(?:" + b"|".join(map(re.escape, self._roots)) + rb")(?![\w.-])")
        self._free = threading.BoundedSemaphore(_MOST)

    def notify(self, ticket: TicketInfo, run: str, files: int) -> None:
        """An operation of the ``run`` is held, by which ``files`` files would be lost. Returns at once; what fails is
        logged.
        """
        if not self._words:
            return
        if not self._free.acquire(blocking=False):
            _LOG.warning("safeguard.notify: %d of it run already", _MOST, ticket=ticket.id)
            return
        try:
            threading.Thread(target=self._run, args=(ticket, run, files), daemon=True).start()
        except RuntimeError as error:  # there may be no more threads
            self._free.release()
            _LOG.warning("safeguard.notify: %s", error, ticket=ticket.id)

    def _run(self, ticket: TicketInfo, run: str, files: int) -> None:
        from holdfast.processes import child  # few keepers start anything

        try:
            environment = self._environment(ticket, run, files)
            program = self._program(environment)
            # It may ask the person, and answer: it may run as long as an answer is accepted.
            limits = child.Limits((ticket.denied_at - ticket.asked_at) / 1e9, errors=_MOST_ERRORS)
            ended = child.run([program, *self._words[1:]], limits, cwd=b"/", environment=environment)
        except (HoldfastError, OSError, ValueError) as error:
            _LOG.warning("safeguard.notify: %s", visible(str(error)), ticket=ticket.id)
        else:
            if ended.code:
                said = ended.errors.decode("utf-8", "replace").strip().splitlines()
                how = "its time was over" if ended.why == "time" else f"it ended with {ended.exit_code}"
                _LOG.warning("safeguard.notify: %s: %s", how, visible(said[-1]) if said else "", ticket=ticket.id)
        finally:
            self._free.release()

    def _program(self, environment: Mapping[bytes, bytes]) -> str:
        """The program's path. Raises `ValueError` if there is none outside of the workspace."""
        if any(self._is_named_in(os.fsencode(word)) for word in self._words):
            raise ValueError("it lies in the workspace, where what it is to tell of may change it")
        found = shutil.which(self._words[0], path=os.fsdecode(environment.get(b"PATH", b"")))
        # A name with a slash is not searched, and relative ones mean nothing in the root directory.
        if found is None or not os.path.isabs(found) or self._is_inside(os.path.realpath(os.fsencode(found))):
            raise ValueError(f"{self._words[0]} is no program outside of the workspace")
        return found

    def _environment(self, ticket: TicketInfo, run: str, files: int) -> dict[bytes, bytes]:
        given = inherited_environment(os.environb)
        directories = given.pop(b"PATH", os.fsencode(os.defpath)).split(b":")
        own = {name: value for name, value in given.items() if not self._is_named_in(value)}
        own[b"PATH"] = b":".join(
            path for path in directories if os.path.isabs(path) and not self._is_inside(os.path.realpath(path))
        )
        if self._home:
            own[b"HOLDFAST_HOME"] = self._home
        held = {
            "WORKSPACE": os.path.realpath(self._roots[0]),
            "RUN": run,
            "STEP": str(ticket.step),
            "TICKET": str(ticket.id),
            "KIND": ticket.danger,
            "PATH": display(ticket.path),
            "FILES": str(files),
            "UNTIL": str(ticket.denied_at // 1_000_000_000),
            "MESSAGE": visible(ticket.message),
        }
        return own | {b"HOLDFAST_HELD_" + name.encode(): os.fsencode(value) for name, value in held.items()}

    def _is_inside(self, path: bytes) -> bool:
        return any(under(path, root) for root in self._roots)

    def _is_named_in(self, value: bytes) -> bool:
        """Whether a word or a variable names a place in the workspace, maybe through a link."""
        paths = (part for part in re.split(rb"[:;,=\s]", value) if part.startswith(b"/"))
        return self._named.search(value) is not None or any(self._is_inside(os.path.realpath(one)) for one in paths)
