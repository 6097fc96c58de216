"""The REST API where others have used up what the kernel has to watch with: who listens is told all the same."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from .conftest import INSTALLED
from .rest import Place, watched

WITHOUT = [
    "unshare",
    "--user",
    "--map-root-user",
    "sh",
    "-c",
    'echo 0 >/proc/sys/user/max_inotify_instances; exec "$@"',
    "sh",
]
"""Whoever is executed so has no inotify instance left: the limit is that of a user namespace, and nobody else's."""


def test_what_changes_is_told_without_inotify(tmp_path: Path) -> None:
    if (
        shutil.which("unshare") is None
        or subprocess.run([*WITHOUT, "true"], check=False, capture_output=True).returncode
    ):
        pytest.skip("needs unshare, and user namespaces")
    place = Place(tmp_path)
    path, live = place.directory("shop", a="1"), place.directory("live", a="1")
    server = place.server(program=[*WITHOUT, *INSTALLED], serve_poll_interval="500ms", watch_debounce="100ms")
    with server as server:
        client = server.client(place.token())
        client.post("/api/exports", {"name": "shop", "path": str(path)})
        client.post("/api/exports", {"name": "live", "path": str(live), "mode": "production"})
        for export in ("shop", "live"):
            client.post(f"/api/exports/{export}/checkpoint")
            watched(client, export)
        with client.events("shop") as events:
            (path / "b").write_text("2")
            seen = [next(events), next(events)]
        assert [event["event"] for event in seen] == ["changed", "checkpoint"]
        assert seen[0]["data"]["paths"] == ["b"]
        with client.events("live") as events:
            (live / "b").write_text("2")
            told = next(events)
        assert (told["event"], told["data"]["paths"], told["data"]["total"]) == ("changed", ["b"], 1)
        assert server.stop() == 0
        assert any("max_user_instances" in line["message"] for line in server.logged())
