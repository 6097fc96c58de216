"""Sessions of an export over HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest

from .rest import Place

S = "/api/exports/shop/sessions"


@pytest.fixture(name="place")
def _place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_session_is_begun_used_saved_and_undone(place: Place) -> None:
    """I1."""
    tree = place.directory("shop", f="1", ignored="1")
    (tree / ".gitignore").write_text("ignored\n")
    with place.server(serve_session_commands="true") as server:
        client = server.client(place.token("--label", "ann"))
        client.post("/api/exports", {"name": "shop", "path": str(tree), "auto_checkpoint": False})
        started = client.post(S, {"id": "one", "environment": {"WHO": "me"}})
        assert (started["id"], started["owner"], started["config"]["supervised"]) == ("one", "ann", True)
        done = client.post(f"{S}/one/exec", {"command": "mkdir d; cd d; export X=$WHO; rm ../ignored; exit 3"})
        assert (done["exit_code"], done["directory_after"]) == (3, "d")
        assert client.post(f"{S}/one/exec", {"command": "echo $X; pwd"})["stdout"].split() == ["me", str(tree / "d")]
        shown = client.get(f"{S}/one?history=1")
        assert [one["command"] for one in shown["history"]] == ["echo $X; pwd"]
        assert (shown["directory"], "env" in shown) == ("d", False)
        assert client.post(f"{S}/one/checkpoint", {"message": "why"})["kind"] == "manual"
        undone = client.post(f"{S}/one/undo")
        assert (len(undone["steps"]), (tree / "ignored").read_text(), (tree / "d").exists()) == (1, "1", False)
        client.post(f"{S}/one/redo")
        assert not (tree / "ignored").exists()
        timed = client.post(f"{S}/one/exec", {"command": "sleep 1000", "timeout_seconds": 0.2})
        assert timed["timed_out"]
        listed = client.get(S)
        assert ([one["id"] for one in listed["sessions"]], listed["next_cursor"]) == (["one"], None)
        client.post(S, {"id": "two"})
        page = client.get(f"{S}?limit=1")
        assert [one["id"] for one in page["sessions"]] == ["two"]
        rest = client.get(f"{S}?limit=1&cursor={page['next_cursor']}")
        assert ([one["id"] for one in rest["sessions"]], rest["next_cursor"]) == (["one"], None)


def test_commands_are_run_for_tokens_with_all_rights_and_only_where_that_is_set(place: Place) -> None:
    """I10."""
    tree, other = place.directory("shop"), place.directory("other")
    with place.server() as server:
        client = server.client(place.token("--label", "ann"))
        for export in (tree, other):
            client.post("/api/exports", {"name": export.name, "path": str(export), "auto_checkpoint": False})
        client.post(S, {"id": "one"})
        answer = client.ask("POST", f"{S}/one/exec", {"command": "touch f"})
        assert (answer.status, answer.code) == (409, "no_session_commands")
        client.post("/api/exports/other/sessions", {"id": "theirs"})
        for verb in ("", "/undo", "/checkpoint"):
            answer = client.ask("POST" if verb else "GET", f"{S}/theirs{verb}", {} if verb else None)
            assert (answer.status, answer.code) == (404, "no_session")
    with place.server(serve_session_commands="true") as server:
        for words, rights in (((), "write"), ((), "read"), (("--export", "shop"), "admin")):
            weak = server.client(place.token("--label", "ann", *words, rights=rights))
            answer = weak.ask("POST", f"{S}/one/exec", {"command": "touch f"})
            assert (answer.status, answer.code) == (403, "forbidden")
        stranger = server.client(place.token("--label", "bob"))
        answer = stranger.ask("POST", f"{S}/one/exec", {"command": "touch f"})
        assert (answer.status, answer.code) == (409, "not_owner")
        foreign = server.client(place.token("--label", "ann", tenant="else"))
        assert foreign.ask("GET", f"{S}/one").status == 404
        assert list(tree.iterdir()) == []


def test_no_session_begins_outside_of_the_export(place: Place) -> None:
    """I7, I10."""
    tree, other = place.directory("shop", d="1"), place.directory("other")
    (tree / "out").symlink_to(other)
    (tree / "below").mkdir()
    with place.server() as server:
        client = server.client(place.token("--label", "ann"))
        for export in (tree, other):
            client.post("/api/exports", {"name": export.name, "path": str(export), "auto_checkpoint": False})
        for cwd in ("out", "../other", "d", "none"):
            assert client.ask("POST", S, {"cwd": cwd}).status in (400, 403, 404, 409, 422), cwd
        for variable in ("", "A=B", "A\0"):
            assert client.ask("POST", S, {"environment": {variable: "1"}}).status in (400, 422), variable
        assert client.get("/api/exports/other/sessions")["sessions"] == []
        assert client.post(S, {"cwd": "below"})["id"]


def test_a_command_is_run_once_for_a_key(place: Place) -> None:
    tree = place.directory("shop")
    with place.server(serve_session_commands="true") as server:
        client = server.client(place.token())
        client.post("/api/exports", {"name": "shop", "path": str(tree), "auto_checkpoint": False})
        client.post(S, {"id": "one"}, idempotency_key="a")
        assert client.post(S, {"id": "one"}, idempotency_key="a")["id"] == "one"
        for _ in range(2):
            client.post(f"{S}/one/exec", {"command": "echo 1 >> f"}, idempotency_key="b")
        assert (tree / "f").read_text() == "1\n"
