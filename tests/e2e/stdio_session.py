"""Records the session that docs/stdio.md shows: ``python -m tests.e2e.stdio_session`` prints it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

SHOWN = "/home/you/shop"
SESSION: list[tuple[str, dict[str, object], int]] = [
    ("hello", {"versions": [1]}, 1),
    ("session.start", {"working_directories": [{"path": SHOWN, "label": "shop"}]}, 1),
    ("safeguard.configure", {"delete_threshold": 2, "timeout_seconds": 60}, 1),
    ("agent.execute", {"command": "mkdir src; echo one | tee src/a src/b; echo two >&2"}, 5),
    ("agent.execute", {"command": "rm src/a src/b"}, 2),
    ("safeguard.confirm", {"safeguard_id": "", "action": "deny"}, 4),
    ("undo.history", {}, 1),
    ("undo.rollback", {"step_id": 1}, 1),
    ("undo.rollback", {"step_id": "one"}, 1),
    ("session.stop", {}, 1),
]
"""What is asked, and how many lines come before the next is asked."""


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
        for number, (kind, payload, lines) in enumerate(SESSION, 1):
            if "safeguard_id" in payload:
                payload = payload | {"safeguard_id": held}
            asked = json.dumps({"type": kind, "request_id": str(number), "payload": payload}, separators=(",", ":"))
            yield f"→ {asked}"
            process.stdin.write(asked.replace(SHOWN, str(tree)).encode() + b"\n")
            process.stdin.flush()
            for _ in range(lines):
                answer = process.stdout.readline().decode().rstrip("\n")
                held = (json.loads(answer).get("payload") or {}).get("safeguard_id", held)
                yield f"← {answer.replace(str(tree), SHOWN)}"
        process.stdin.close()
        assert process.stdout.read() == b""
    assert process.returncode == 0


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
