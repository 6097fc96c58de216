"""Records the session that docs/reference/stdio.md shows: ``python -m tests.e2e.stdio_session`` prints it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

SHOWN = "/home/you/shop"
SESSION: list[tuple[str, dict[str, object], tuple[str, ...]]] = [
    ("hello", {"versions": [1]}, ("1",)),
    ("session.start", {"working_directories": [{"path": SHOWN, "label": "shop"}]}, ("2",)),
    ("safeguard.configure", {"delete_threshold": 2, "timeout_seconds": 60}, ("3",)),
    ("agent.execute", {"command": "touch a b"}, ("4",)),
    ("agent.execute", {"command": "rm a b"}, ("event.safeguard_triggered",)),
    ("safeguard.confirm", {"safeguard_id": "", "action": "deny"}, ("5", "6")),
    ("undo.rollback", {"step_id": 1}, ("7",)),
    ("undo.rollback", {"step_id": "one"}, ("8",)),
    ("session.stop", {}, ("9",)),
]
"""What is asked, and what must have come before the next is asked: requests' answers, and events."""


def record(base: Path) -> Iterator[str]:
    """The lines of the session, which happens in ``base``."""
    tree = base / "shop"
    tree.mkdir()
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "holdfast", "stdio"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=tree,
        env={**os.environ, "HOLDFAST_HOME": str(base / "home"), "LC_ALL": "C"},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        held = ""
        for number, (kind, payload, awaited) in enumerate(SESSION, 1):
            if "safeguard_id" in payload:
                payload = payload | {"safeguard_id": held}
            asked = _line({"type": kind, "request_id": str(number), "payload": payload})
            yield f"→ {asked}"
            process.stdin.write(asked.replace(SHOWN, str(tree)).encode() + b"\n")
            process.stdin.flush()
            answers = []
            missing = set(awaited)
            while missing:
                answer = json.loads(process.stdout.readline())
                held = (answer.get("payload") or {}).get("safeguard_id", held)
                missing -= {answer["type"], answer.get("request_id")}
                answers.append(answer)
            yield from (f"← {_line(answer).replace(str(tree), SHOWN)}" for answer in _joined(answers))
        process.stdin.close()
        rest = process.stdout.read().decode()
        assert rest == "", rest
    assert process.returncode == 0


def _line(message: Mapping[str, Any]) -> str:
    return json.dumps(message, separators=(",", ":"), ensure_ascii=False)


def _joined(answers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Output as it would have come in one piece: how a program writes it is its own affair."""
    joined: list[dict[str, Any]] = []
    pieces: dict[str, dict[str, Any]] = {}
    for answer in answers:
        if answer["type"] == "event.terminal_output":
            payload = answer["payload"]
            first = pieces.setdefault(payload["stream"], payload)
            if first is not payload:
                first["data"] += payload["data"]
                continue
        joined.append(answer)
    return joined


def settled(text: str) -> str:
    """A session without what is another each time; ids are numbered in the order in which they appear."""
    ids: dict[str, str] = {}
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", "(time)", text)
    text = re.sub(r"0-1-\d{19}", "(safeguard)", text)
    return re.sub(
        r"\b(?:[0-9a-f]{24}|[0-9a-f]{12})\b", lambda id_: ids.setdefault(id_[0], f"(id {len(ids) + 1})"), text
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        print("\n".join(record(Path(directory).resolve())))
