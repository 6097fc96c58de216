"""A frontend for tests: it starts `holdfast stdio` as a process of its own, and talks to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0
HOLDFAST = ("-m", "holdfast")

Message = dict[str, Any]


class Frontend:
    """Collects what the server says, on a thread."""

    def __init__(
        self, directory: Path, home: Path, *options: str, program: Sequence[str] = HOLDFAST, **variables: str
    ) -> None:
        """``program`` is what Python runs as the command."""
        self.log = home.with_name(f"log-{os.urandom(4).hex()}")
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "HOLDFAST_HOME": str(home)} | variables
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", *program, "--log-level", "info", "stdio", *options],
                cwd=directory,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._in, self._out = self.process.stdin, self.process.stdout
        self.messages: list[Message] = []
        self._turn = threading.Condition()
        self._last = 0
        self.reading = threading.Event()
        """Cleared, it reads no more than the line that it waits for."""
        self.reading.set()
        self._hangs_up = False
        self.taken: Callable[[Message], object] = self.messages.append
        """What is done with each message."""
        self._reader = threading.Thread(target=self._collect, daemon=True)
        self._reader.start()

    def _collect(self) -> None:
        while (line := self._out.readline()).endswith(b"\n"):  # (the last one is cut, if we have not read for long)
            with self._turn:
                self.taken(json.loads(line))  # (I13: nothing else may be there)
                self._turn.notify_all()
            if self._hangs_up:
                self._out.close()
                return
            self.reading.wait()

    def write(self, data: bytes) -> None:
        """Send bytes."""
        self._in.write(data)
        self._in.flush()

    def send(self, kind: str, **payload: object) -> str:
        """Send a request; its id."""
        self._last += 1
        identity = str(self._last)
        self.write(json.dumps({"type": kind, "request_id": identity, "payload": payload}).encode() + b"\n")
        return identity

    def wait(self, wanted: Callable[[Message], object], since: int = 0) -> Message:
        """The first message that is ``wanted``."""

        def found() -> Message | None:
            return next((message for message in self.messages[since:] if wanted(message)), None)

        with self._turn:
            assert self._turn.wait_for(found, PATIENCE), (self.messages[-5:], self.log.read_text()[-2000:])
            return found() or {}

    def event(self, kind: str, since: int = 0) -> Message:
        """The payload of the first event of this kind."""
        return self.wait(lambda message: message["type"] == f"event.{kind}", since)["payload"]

    def events(self, kind: str) -> list[Message]:
        """The payloads of all events of this kind until now."""
        return [message["payload"] for message in self.messages if message["type"] == f"event.{kind}"]

    def answer(self, identity: str | None) -> Message:
        """The response to a request."""
        return self.wait(lambda message: message["type"] == "response" and message["request_id"] == identity)

    def ask(self, kind: str, **payload: object) -> Message:
        """What a request is answered with, which is no error."""
        answer = self.answer(self.send(kind, **payload))
        assert answer["status"] == "ok", answer
        return answer["payload"]

    def refused(self, kind: str, **payload: object) -> Message:
        """The error that a request is answered with."""
        answer = self.answer(self.send(kind, **payload))
        assert answer["status"] == "error", answer
        return answer["error"]

    def begin(self, *directories: object, **options: object) -> Message:
        """Agree on the version, and start a session."""
        self.ask("hello", versions=[1])
        if directories:
            options["working_directories"] = [
                each if isinstance(each, dict) else {"path": str(each)} for each in directories
            ]
        return self.ask("session.start", **options)

    def end(self) -> int:
        """Close its standard input and wait; the exit code."""
        if not self._in.closed:
            self._in.close()
        return self.ended()

    def ended(self) -> int:
        """Wait until it has ended by itself; the exit code."""
        self.reading.set()
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        if not self._in.closed:
            self._in.close()
        self._out.close()
        return code

    def hang_up(self) -> None:
        """Read one more message and then no more, and let that be known."""
        self._hangs_up = True

    @property
    def logged(self) -> list[Message]:
        """The records of its log, which is nothing but records."""
        return [json.loads(line) for line in self.log.read_text().splitlines(keepends=True) if line.endswith("\n")]


class Start(Protocol):
    """Starts one in the directory of a test."""

    def __call__(self, *options: str, program: Sequence[str] = HOLDFAST, **variables: str) -> Frontend: ...
