"""The REST API by a real server: what can be asked for, who may ask, and what is refused."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.api.rest import server as serving
from holdfast.model.errors import UsageError

from ..waiting import wait_until
from .rest import Client, Place, Server, together, watched


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """One home for all tests here."""
    return Place(tmp_path_factory.mktemp("rest"))


@pytest.fixture(scope="module")
def server(place: Place) -> Iterator[Server]:
    """One server for all of them; what it did to the store is sound."""
    with place.server(watch_debounce="200ms", serve_requests_per_minute="100000") as server:
        yield server
        assert server.stop() == 0, server.log.read_text()
        assert all("exception" not in line for line in server.logged())
        assert not re.search("hft_[0-9a-f]{16}_", server.log.read_text()), "a secret is in the log"
    for tenant in ("local", "other"):
        os.environ["HOLDFAST_STORE_TENANT"] = tenant
        try:
            assert json.loads(place.holdfast("--json", "verify", "--read-data"))["ok"]
        finally:
            del os.environ["HOLDFAST_STORE_TENANT"]


@pytest.fixture(scope="module")
def admin(place: Place, server: Server) -> Client:
    """Who may do everything."""
    return server.client(place.token())


def shop(place: Place, admin: Client, name: str, **files: str) -> Path:
    """An export, with a first checkpoint that is called ``one``."""
    path = place.directory(name, **(files or {"a.txt": "one\n", "b.txt": "two\n"}))
    admin.post("/api/exports", {"name": name, "path": str(path), "auto_checkpoint": False, "project": f"p-{name}"})
    admin.post(f"/api/exports/{name}/checkpoint", {"label": "one"})
    return path


def test_an_export_is_saved_looked_at_changed_and_brought_back(place: Place, admin: Client) -> None:
    path = shop(place, admin, "round")
    (path / "a.txt").write_text("ONE\n")
    (path / "new").mkdir()
    (path / "new" / "c.txt").write_text("three\n")
    status = admin.get("/api/exports/round/status")
    assert (status["modified"], status["added"], status["clean"]) == (["a.txt"], ["new/c.txt"], False)
    taken = admin.post("/api/exports/round/checkpoint", {"label": "two", "message": "why", "author": "me"})
    assert taken["created"]
    assert taken["stats"]["total_files"] == 3
    two = taken["checkpoint_id"]
    listed = admin.get("/api/exports/round/checkpoints?limit=1")
    assert [one["label"] for one in listed["checkpoints"]] == ["two"]
    rest = admin.get(f"/api/exports/round/checkpoints?limit=1&cursor={listed['next_cursor']}")
    assert [one["label"] for one in rest["checkpoints"]] == ["one"]
    assert rest["next_cursor"] is None
    one = rest["checkpoints"][0]["id"]
    assert admin.get("/api/projects/p-round/checkpoints")["checkpoints"][0]["export"] == "round"
    details = admin.get(f"/api/checkpoints/{two}")
    assert (details["message"], details["author"], details["paths"]["added"]) == ("why", "me", ["new/c.txt"])
    files = admin.get(f"/api/checkpoints/{two}/files?limit=2")
    assert [file["path"] for file in files["files"]] == ["a.txt", "b.txt"]
    files = admin.get(f"/api/checkpoints/{two}/files?limit=2&cursor={files['next_cursor']}")
    assert [(file["path"], file["mode"]) for file in files["files"]] == [("new/c.txt", "0644")]
    assert files["next_cursor"] is None
    assert [file["path"] for file in admin.get(f"/api/checkpoints/{two}/files?path=new")["files"]] == ["new/c.txt"]
    content = admin.ask("GET", f"/api/checkpoints/{one}/file?path=a.txt")
    assert content.content == b"one\n"
    assert content.headers["content-disposition"] == "attachment"
    diff = admin.get(f"/api/checkpoints/{one}/diff/{two}")
    assert diff["added"] == [{"path": "new/c.txt", "size": 6}]
    assert "-one\n+ONE" in diff["modified"][0]["diff"]
    assert admin.get(f"/api/checkpoints/{one}/diff/{two}?path=a.txt&content=false")["modified"] == [{"path": "a.txt"}]
    dry = admin.post("/api/exports/round/restore", {"checkpoint": "one", "dry_run": True})
    assert (dry["written"], dry["deleted"], dry["dry_run"]) == (["a.txt"], ["new/c.txt"], True)
    assert (path / "a.txt").read_text() == "ONE\n"
    admin.post("/api/exports/round/restore", {"checkpoint": "one"})
    assert (path / "a.txt").read_text() == "one\n"
    assert not (path / "new").exists()
    admin.post("/api/exports/round/undo")
    assert (path / "new" / "c.txt").read_text() == "three\n"
    admin.post("/api/exports/round/redo")
    assert not (path / "new").exists()
    part = admin.post("/api/exports/round/restore", {"checkpoint": "two", "paths": ["new"]})
    assert part["written"] == ["new/c.txt"]


def test_i6_files_are_written_and_deleted_by_a_plan_as_one_change(place: Place, admin: Client) -> None:
    path = shop(place, admin, "plan")
    held = admin.get("/api/exports/plan/checkpoints")["checkpoints"][0]["id"]
    known = admin.get(f"/api/checkpoints/{held}/files")["files"][0]["hash"]
    done = admin.post(
        "/api/exports/plan/write-files",
        {
            "writes": [
                {"path": "copy/of-a", "blob_hash": known, "mode": "0755"},
                {"path": "text", "content": "Grüße"},
                {"path": "binary", "content_base64": base64.b64encode(bytes(range(256)) * 8192).decode()},
                {"path": "link", "content": "text", "mode": "120000"},
            ],
            "deletes": ["b.txt", "gone"],
        },
    )
    assert (done["written"], done["deleted"]) == (4, 1)
    assert [error["path"] for error in done["errors"]] == ["gone"]
    assert (path / "copy" / "of-a").read_text() == "one\n"
    assert stat.S_IMODE((path / "copy" / "of-a").stat().st_mode) == 0o755
    assert (path / "binary").read_bytes() == bytes(range(256)) * 8192
    assert (path / "link").readlink() == Path("text")
    assert not (path / "b.txt").exists()
    admin.post("/api/exports/plan/undo")
    assert sorted(os.listdir(path)) == ["a.txt", "b.txt"]


@pytest.mark.parametrize(
    ("plan", "code"),
    [
        ({"writes": [{"path": "x", "content": "1"}, {"path": "x", "content": "2"}]}, "usage"),
        ({"writes": [{"path": "x", "content": "1"}], "deletes": ["x"]}, "usage"),
        ({"writes": [{"path": "x", "content": "1"}, {"path": "x/y", "content": "2"}]}, "usage"),
        ({"writes": [{"path": "a.txt/y", "content": "1"}]}, "in_the_way"),
        ({"writes": [{"path": "d", "content": "1"}]}, "in_the_way"),
        ({"writes": [{"path": "x"}]}, "usage"),
        ({"writes": [{"path": "x", "content": "", "mode": "120000"}]}, "usage"),
        ({"writes": [{"path": "x", "content_base64": "?"}]}, "usage"),
        ({"writes": [{"path": "x", "blob_hash": "blake3:" + "0" * 32}]}, "no_blob"),
        ({"writes": [{"path": "x", "content": "", "mode": "4755"}]}, "invalid"),
        ({"wrong": 1}, "invalid"),
    ],
)
def test_a_plan_that_makes_no_sense_changes_nothing(place: Place, admin: Client, plan: object, code: str) -> None:
    path = place.root / "senseless"
    if not path.exists():
        path.mkdir()
        (path / "d").mkdir()
        (path / "d" / "e").write_text("")
        (path / "a.txt").write_text("")
        admin.post("/api/exports", {"name": "senseless", "path": str(path)})
    answer = admin.ask("POST", "/api/exports/senseless/write-files", plan)
    assert answer.code == code
    assert sorted(os.listdir(path)) == ["a.txt", "d"]


def test_a_fork_is_an_export_and_a_merge_is_planned(place: Place, admin: Client) -> None:
    path = shop(place, admin, "trunk")
    forked = admin.post("/api/exports/trunk/fork", {"name": "branch", "checkpoint": "one"})
    assert forked["written"] == 2
    assert forked["export"]["project"] == "p-trunk"
    tree = Path(forked["export"]["path"])
    assert sorted(os.listdir(tree)) == ["a.txt", "b.txt"]
    assert tree.stat().st_mode == path.stat().st_mode
    (tree / "a.txt").write_text("theirs\n")
    (tree / "c.txt").write_text("new\n")
    (path / "b.txt").write_text("ours\n")
    theirs = admin.post("/api/exports/branch/checkpoint")["checkpoint_id"]
    ours = admin.post("/api/exports/trunk/checkpoint")["checkpoint_id"]
    merged = admin.post("/api/merge", {"production_checkpoint": ours, "promote_checkpoint": theirs})
    assert merged["result"] == "clean"
    assert (merged["changes"]["apply_theirs"], merged["changes"]["keep_production"]) == (2, 1)
    (path / "a.txt").write_text("ours too\n")
    ours = admin.post("/api/exports/trunk/checkpoint")["checkpoint_id"]
    merged = admin.post("/api/merge", {"production_checkpoint": ours, "promote_checkpoint": theirs})
    assert (merged["result"], merged["changes"]["overlapping"]) == ("needs_reapply", 1)
    assert [file["path"] for file in merged["overlapping_files"]] == ["a.txt"]
    foreseen = merged["overlapping_files"][0]["foreseen"]
    assert not foreseen["applies"]
    assert [(one["rung"], one["result"]) for one in foreseen["rungs"]] == [
        ("structure", "declines"),
        ("text", "declines"),
        ("person", "asked"),
    ]
    several = admin.ask("POST", "/api/projects/p-trunk/checkpoints", {})
    assert several.code == "several"
    (path / "z").write_text("")
    assert admin.post("/api/projects/p-trunk/checkpoints", {"export": "trunk"})["created"]
    both = admin.get("/api/projects/p-trunk/checkpoints")["checkpoints"]
    assert {one["export"] for one in both} == {"trunk", "branch"}
    again = admin.ask("POST", "/api/exports/trunk/fork", {"name": "branch"})
    assert (again.status, again.code) == (409, "export_exists")


def test_a_fork_of_the_present_state_holds_what_was_not_saved(place: Place, admin: Client) -> None:
    path = shop(place, admin, "unsaved")
    (path / "late.txt").write_text("late\n")
    before = admin.get("/api/exports/unsaved/checkpoints")["checkpoints"][0]["id"]
    saved = admin.post("/api/exports/unsaved/fork", {"name": "old", "checkpoint": "@"})
    assert saved["source"] == before
    assert not (Path(saved["export"]["path"]) / "late.txt").exists()
    present = admin.post("/api/exports/unsaved/fork", {"name": "new"})
    assert present["source"] == admin.get("/api/exports/unsaved/checkpoints")["checkpoints"][0]["id"] != before
    assert (Path(present["export"]["path"]) / "late.txt").read_text() == "late\n"


def test_an_export_can_serve_another_directory(place: Place, admin: Client) -> None:
    shop(place, admin, "first-home")
    kept = admin.get("/api/exports/first-home/checkpoints")["checkpoints"][0]["id"]
    second = place.directory("second-home", f="2")
    changed = admin.ask("PUT", "/api/exports/first-home", {"path": str(second)})
    assert (changed.status, changed.json["path"], changed.json["project"]) == (200, str(second), "p-first-home")
    assert admin.ask("PUT", "/api/exports/first-home", {"path": str(second)}).status == 200
    assert admin.ask("GET", f"/api/checkpoints/{kept}").code == "no_checkpoint"
    watched(admin, "first-home")
    taken = admin.post("/api/exports/first-home/checkpoint")["checkpoint_id"]
    files = admin.get(f"/api/checkpoints/{taken}/files")["files"]
    assert [one["path"] for one in files] == ["f"]
    # What was saved of the first directory is there again when it is served again.
    admin.post("/api/exports", {"name": "again", "path": str(place.root / "first-home")})
    assert admin.get(f"/api/checkpoints/{kept}")["export"] == "again"
    taken_already = admin.ask("PUT", "/api/exports/again", {"path": str(second)})
    assert (taken_already.status, taken_already.code) == (409, "export_exists")
    assert admin.ask("PUT", "/api/exports/again", {"path": "/etc"}).code == "outside_roots"
    assert admin.ask("PUT", "/api/exports/again", {"path": str(place.root / "nowhere")}).code == "no_path"
    scoped = admin_of(place, "again")
    assert Client(admin.port, scoped).ask("PUT", "/api/exports/again", {"path": str(second)}).status == 403


def admin_of(place: Place, export: str) -> str:
    """A token with all rights for one export."""
    return place.token("--export", export)


def test_checkpoints_and_exports_are_deleted(place: Place, admin: Client) -> None:
    path = shop(place, admin, "short-lived")
    first = admin.get("/api/exports/short-lived/checkpoints")["checkpoints"][0]["id"]
    assert admin.ask("DELETE", f"/api/checkpoints/{first}").code == "protected"
    (path / "more").write_text("")
    admin.post("/api/exports/short-lived/checkpoint")
    assert admin.ask("DELETE", f"/api/checkpoints/{first}").json == {"deleted": first}
    assert admin.ask("GET", f"/api/checkpoints/{first}").code == "no_checkpoint"
    kept = admin.get("/api/exports/short-lived/checkpoints")["checkpoints"][0]["id"]
    assert admin.ask("DELETE", "/api/exports/short-lived").json == {"deleted": "short-lived"}
    assert admin.ask("GET", "/api/exports/short-lived").code == "no_export"
    assert admin.ask("GET", f"/api/checkpoints/{kept}").code == "no_checkpoint"
    assert (path / "more").exists()
    admin.post("/api/exports", {"name": "short-lived", "path": str(path)})
    assert admin.get(f"/api/checkpoints/{kept}")["id"] == kept


def test_an_export_without_a_path_gets_a_directory_of_its_own(admin: Client) -> None:
    made = admin.post("/api/exports", {"name": "fresh"})
    assert os.listdir(made["path"]) == []
    assert stat.S_IMODE(os.stat(made["path"]).st_mode) == 0o700
    admin.post("/api/exports/fresh/write-files", {"writes": [{"path": "a", "content": "1"}]})
    assert Path(made["path"], "a").read_text() == "1"


# -- who may ask -------------------------------------------------------------------------------------------------


def test_who_has_no_token_or_comes_from_elsewhere_is_refused(server: Server, admin: Client) -> None:
    nobody = server.client()
    assert (nobody.ask("GET", "/api/exports").status, nobody.ask("GET", "/metrics").status) == (401, 401)
    assert nobody.ask("GET", "/api/exports").headers["www-authenticate"].startswith("Bearer")
    for wrong in ("", "hft_", "hft_" + "0" * 16 + "_" + "0" * 64, (admin.token or "")[:-1] + "g"):
        assert server.client(wrong or "x").ask("GET", "/api/exports").code == "unauthorized"
    assert admin.ask("GET", "/api/exports", Origin="https://evil.example").code == "foreign_origin"
    assert admin.ask("GET", "/api/exports", Origin="null").code == "foreign_origin"
    assert nobody.ask("GET", "/api/health", Host="evil.example").code == "foreign_host"
    assert nobody.ask("GET", "/api/health", Host="127.0.0.1.evil.example:80").code == "foreign_host"
    for host in ("localhost", f"127.0.0.1:{server.port}", "[::1]:1"):
        assert nobody.ask("GET", "/api/health", Host=host).status == 200


def test_a_token_does_what_its_rights_are_for_the_exports_it_is_for(
    place: Place, server: Server, admin: Client
) -> None:
    shop(place, admin, "mine")
    path = shop(place, admin, "theirs", secret="a secret")
    theirs = admin.get("/api/exports/theirs/checkpoints")["checkpoints"][0]["id"]
    mine = admin.get("/api/exports/mine/checkpoints")["checkpoints"][0]["id"]
    secret = admin.get(f"/api/checkpoints/{theirs}/files")["files"][0]["hash"]
    reader = server.client(place.token(rights="read"))
    assert reader.get("/api/exports/mine")["name"] == "mine"
    assert reader.ask("POST", "/api/exports/mine/checkpoint", {}).code == "forbidden"
    writer = server.client(place.token(rights="write"))
    writer.post("/api/exports/mine/checkpoint")
    for method, what in (("DELETE", f"/api/checkpoints/{mine}"), ("DELETE", "/api/exports/mine")):
        assert writer.ask(method, what).code == "forbidden"
    assert writer.ask("PUT", "/api/exports/mine", {"mode": "production"}).code == "forbidden"
    scoped = server.client(place.token("--export", "mine", rights="admin"))
    assert [one["name"] for one in scoped.get("/api/exports")["exports"]] == ["mine"]
    assert scoped.ask("POST", "/api/exports", {"name": "x"}).code == "forbidden"
    missing = scoped.ask("GET", "/api/checkpoints/" + "0" * 24)
    hidden = scoped.ask("GET", f"/api/checkpoints/{theirs}")
    assert missing.json["detail"].replace("0" * 24, theirs) == hidden.json["detail"]
    for method, what, body in (
        ("GET", "/api/exports/theirs", None),
        ("GET", "/api/exports/theirs/events", None),
        ("GET", f"/api/checkpoints/{theirs}/file?path=secret", None),
        ("GET", f"/api/checkpoints/{mine}/diff/{theirs}", None),
        ("GET", "/api/projects/p-theirs/checkpoints", None),
        ("POST", "/api/exports/mine/restore", {"checkpoint": theirs}),
        ("POST", "/api/exports/mine/restore", {"checkpoint": theirs[:8]}),
        ("POST", "/api/exports/mine/restore", {"checkpoint": mine, "expected": theirs}),
        ("POST", "/api/merge", {"production_checkpoint": mine, "promote_checkpoint": theirs}),
        ("DELETE", f"/api/checkpoints/{theirs}", None),
    ):
        assert scoped.ask(method, what, body).status == 404, (method, what)
    plan = {"writes": [{"path": "stolen", "blob_hash": secret}]}
    assert scoped.ask("POST", "/api/exports/mine/write-files", plan).code == "usage"
    assert scoped.ask("POST", "/api/exports/mine/write-files", {**plan, "source": mine}).code == "no_blob"
    assert scoped.ask("POST", "/api/exports/mine/write-files", {**plan, "source": theirs}).status == 404
    assert sorted(os.listdir(path)) == ["secret"]
    short = server.client(place.token("--expires", "1s", rights="read"))
    wait_until(lambda: short.ask("GET", "/api/exports").status == 401, "the end of a token")


def test_a_token_that_is_revoked_is_nothing_any_more(place: Place, server: Server) -> None:
    client = server.client(place.token(rights="read"))
    client.get("/api/exports")
    assert client.token is not None
    name = client.token.split("_")[1]
    assert name in place.holdfast("serve", "token", "list")
    assert client.token.split("_")[2] not in place.holdfast("serve", "token", "list")
    place.holdfast("serve", "token", "revoke", "--tenant", "local", name)
    assert client.ask("GET", "/api/exports").status == 401
    place.holdfast("serve", "token", "revoke", name, code=3)


def test_i10_a_tenant_reaches_no_byte_of_another(place: Place, server: Server, admin: Client) -> None:
    path = shop(place, admin, "ours", secret="known to us alone")
    ours = admin.get("/api/exports/ours/checkpoints")["checkpoints"][0]["id"]
    known = admin.get(f"/api/checkpoints/{ours}/files")["files"][0]["hash"]
    other = server.client(place.token(tenant="other"))
    other.post("/api/exports", {"name": "ours"})
    assert [one["name"] for one in other.get("/api/exports")["exports"]] == ["ours"]
    for method, what, body in (
        ("GET", f"/api/checkpoints/{ours}", None),
        ("GET", f"/api/checkpoints/{ours}/files", None),
        ("GET", f"/api/checkpoints/{ours}/file?path=secret", None),
        ("GET", f"/api/checkpoints/{ours}/diff/{ours}", None),
        ("GET", "/api/projects/p-ours/checkpoints", None),
        ("POST", "/api/exports/ours/restore", {"checkpoint": ours}),
        ("POST", "/api/exports/ours/restore", {"checkpoint": "one"}),
        ("POST", "/api/exports/ours/fork", {"name": "stolen", "checkpoint": ours}),
        ("POST", "/api/exports/ours/write-files", {"writes": [{"path": "x", "blob_hash": known}]}),
        ("DELETE", f"/api/checkpoints/{ours}", None),
    ):
        answer = other.ask(method, what, body)
        assert answer.status == 404, (what, answer)
        assert b"known to us" not in answer.content
    # Neither the directory, nor one in it, nor one that holds it; nor may a fork be written there.
    (path / "sub").mkdir()
    for at in (path, path / "sub", place.root):
        refused = other.ask("POST", "/api/exports", {"name": "theirs", "path": str(at)})
        assert refused.code in ("not_yours", "outside_roots"), refused
    refused = other.ask("POST", "/api/exports/ours/fork", {"name": "f", "path": str(path / "sub")})
    assert refused.code in ("not_yours", "no_such_checkpoint", "not_found", "no_checkpoint")
    link = place.root / "link-to-ours"
    link.symlink_to(path)
    assert other.ask("POST", "/api/exports", {"name": "theirs", "path": str(link)}).code == "not_yours"
    with admin.events("ours") as events:
        other.post("/api/exports/ours/write-files", {"writes": [{"path": "theirs", "content": "x"}]})
        admin.post("/api/exports/ours/write-files", {"writes": [{"path": "mark", "content": "x"}]})
        for event in events:
            assert "theirs" not in json.dumps(event)
            if event["event"] == "written":
                break


def test_a_page_of_an_origin_that_may_ask_gets_its_answer(place: Place) -> None:
    with place.server("--no-upkeep", serve_origins="https://shop.example") as server:
        ours, client = "https://shop.example", server.client(place.token(rights="read"))
        before = client.ask("OPTIONS", "/api/exports", Origin=ours, Access_Control_Request_Method="POST")
        assert (before.status, before.headers["access-control-allow-origin"]) == (204, ours)
        assert "authorization" in before.headers["access-control-allow-headers"]
        assert client.ask("GET", "/api/exports", Origin=ours).headers["access-control-allow-origin"] == ours
        other = client.ask("OPTIONS", "/api/exports", Origin="https://evil.example")
        assert other.code == "foreign_origin"
        assert "access-control-allow-origin" not in other.headers


def test_a_mistake_in_an_exports_own_file_keeps_nobody_from_looking_and_going_back(place: Place, admin: Client) -> None:
    path = shop(place, admin, "mistaken")
    (path / "a.txt").write_text("changed\n")
    (path / "holdfast.toml").write_text("nonsense = [")
    first = admin.get("/api/exports/mistaken/checkpoints")["checkpoints"][0]["id"]
    assert admin.get(f"/api/checkpoints/{first}")["label"] == "one"
    for what, body in (("checkpoint", {}), ("write-files", {"deletes": ["b.txt"]})):
        refused = admin.ask("POST", f"/api/exports/mistaken/{what}", body)
        assert (refused.status, refused.code) == (409, "bad_config")
    admin.post("/api/exports/mistaken/restore", {"checkpoint": "one"})
    assert (path / "a.txt").read_text() == "one\n"
    assert admin.post("/api/exports/mistaken/checkpoint")["created"] is False


def test_a_mistake_in_an_exports_own_file_is_mended_by_writing_it(place: Place, admin: Client) -> None:
    path = shop(place, admin, "mended")
    for body in ({"writes": [{"path": "holdfast.toml", "content": ""}]}, {"deletes": ["holdfast.toml"]}):
        (path / "holdfast.toml").write_text("nonsense = [")
        assert admin.ask("POST", "/api/exports/mended/checkpoint", {}).code == "bad_config"
        admin.post("/api/exports/mended/write-files", body)
        admin.post("/api/exports/mended/checkpoint")


# -- paths -------------------------------------------------------------------------------------------------------

HOSTILE = (
    "../out",
    "a/../../out",
    "/etc/out",
    "a//b",
    "./a",
    "a/.",
    "",
    "nul\x00",
    ".git/config",
    "a/.git/hooks/x",
    ".holdfast/x",
    "x" * 256,
    "/".join(["d" * 200] * 30),
)


def test_i7_no_path_leads_out_of_an_export(place: Place, admin: Client) -> None:
    path = shop(place, admin, "walled")
    outside = place.directory("outside-of-it", victim="untouched")
    (path / "way-out").symlink_to(outside)
    here = admin.post("/api/exports/walled/checkpoint")["checkpoint_id"]
    for hostile in HOSTILE:
        body = {"writes": [{"path": hostile, "content": "x"}]}
        assert admin.ask("POST", "/api/exports/walled/write-files", body).status == 400, hostile
        assert admin.ask("POST", "/api/exports/walled/write-files", {"deletes": [hostile]}).status == 400, hostile
        body = {"checkpoint": "one", "paths": [hostile]}
        assert admin.ask("POST", "/api/exports/walled/restore", body).status == 400, hostile
    for text in ("way-out/victim", "way-out/new"):
        answer = admin.ask("POST", "/api/exports/walled/write-files", {"writes": [{"path": text, "content": "x"}]})
        assert answer.code == "in_the_way"
        assert admin.ask("GET", f"/api/checkpoints/{here}/file?path={text}").code == "no_such_path"
    for text in ("..%2f..%2fetc%2fpasswd", "%2fetc%2fpasswd", "way-out%2f..%2f..%2fa"):
        assert admin.ask("GET", f"/api/checkpoints/{here}/file?path={text}").status == 404
    assert admin.ask("GET", f"/api/checkpoints/{here}/file?path=way-out").content == os.fsencode(outside)
    assert (outside / "victim").read_text() == "untouched"
    assert os.listdir(outside) == ["victim"]
    for where in ("/", "/etc", str(place.base), f"{place.root}/../home", "relative", str(place.root), "/proc/1"):
        answer = admin.ask("POST", "/api/exports", {"name": "bad", "path": where})
        assert answer.code in ("escape", "outside_roots"), where
        answer = admin.ask("POST", "/api/exports/walled/fork", {"name": "bad", "path": where})
        assert answer.code in ("escape", "outside_roots"), where
    (place.root / "link-out").symlink_to("/etc")
    assert admin.ask("POST", "/api/exports", {"name": "bad", "path": f"{place.root}/link-out"}).status == 400
    for name in ("..", ".", "a/b", "%2e%2e", "a\x00b", "x" * 65, "-x", "é"):
        assert admin.ask("POST", "/api/exports", {"name": name}).code == "invalid", name


def test_i7_a_link_in_the_place_of_an_exports_directory_leads_nowhere(place: Place, admin: Client) -> None:
    """Whoever may write where exports lie must not make the server, which may do more, read or write elsewhere."""
    outside = place.directory("not-served", victim="untouched")
    (outside / "inner").mkdir()
    (outside / "inner" / "victim").write_text("untouched")
    above = place.root / "above"
    above.mkdir()
    (above / "inner").mkdir()
    (above / "inner" / "a").write_text("a")
    admin.post("/api/exports", {"name": "inner", "path": str(above / "inner")})
    first = admin.post("/api/exports/inner/checkpoint")["checkpoint_id"]
    for swapped, target in ((above / "inner", outside), (above, outside)):
        aside = swapped.with_name(swapped.name + ".aside")
        swapped.rename(aside)
        swapped.symlink_to(target)
        for what, body in (
            ("checkpoint", {}),
            ("write-files", {"writes": [{"path": "victim", "content": "x"}]}),
            ("restore", {"checkpoint": first}),
            ("undo", {}),
            ("fork", {"name": "inner-fork", "path": str(swapped / "new")}),
        ):
            answer = admin.ask("POST", f"/api/exports/inner/{what}", body)
            assert answer.code == "linked", (what, answer)
        assert admin.ask("GET", "/api/exports/inner/status").code == "linked"
        assert admin.get("/api/exports/inner/checkpoints")["checkpoints"][0]["id"] == first
        swapped.unlink()
        aside.rename(swapped)
    assert (outside / "victim").read_text() == (outside / "inner" / "victim").read_text() == "untouched"
    assert admin.get("/api/exports/inner/status")["clean"]


def test_names_that_are_no_utf8_come_and_go(place: Place, admin: Client) -> None:
    path = shop(place, admin, "bytes")
    Path(os.fsdecode(bytes(path) + b"/caf\xe9")).write_text("coffee")
    here = admin.post("/api/exports/bytes/checkpoint")["checkpoint_id"]
    shown = next(one["path"] for one in admin.get(f"/api/checkpoints/{here}/files")["files"] if "caf" in one["path"])
    assert shown == "caf\\xe9"
    assert admin.ask("GET", f"/api/checkpoints/{here}/file?path=caf%5Cxe9").content == b"coffee"


# -- limits ------------------------------------------------------------------------------------------------------


def test_what_is_too_large_wrong_or_unknown_is_refused(place: Place, admin: Client) -> None:
    shop(place, admin, "wrong")
    large = b'{"writes":[{"path":"x","content":"' + b"x" * (17 << 20) + b'"}]}'
    connection = admin.connection()
    try:
        connection.putrequest("POST", "/api/exports/wrong/write-files")
        for name, value in admin.headers(Content_Type="application/json", Content_Length=str(len(large))).items():
            connection.putheader(name, value)
        connection.endheaders()
        assert connection.getresponse().status == 413
    finally:
        connection.close()
    assert admin.ask("GET", "/api/nothing").code == "no_such_route"
    answer = admin.ask("DELETE", "/api/exports")
    assert (answer.code, answer.headers["allow"]) == ("bad_method", "GET, POST")
    assert admin.ask("POST", "/api/merge", b"{}", Content_Type="text/plain").code in ("bad_media_type", "invalid")
    assert admin.ask("POST", "/api/merge", b"{").code == "invalid"
    assert admin.ask("POST", "/api/merge", b"[" * 100_000).code == "invalid"
    for query in ("limit=0", "limit=x", "limit=1&limit=2", "unknown=1", "cursor=%ff", "cursor=!", "cursor=AAAA"):
        assert admin.ask("GET", f"/api/exports/wrong/checkpoints?{query}").status == 400, query
    assert admin.ask("POST", "/api/exports", {"name": "x"}, Idempotency_Key="a b").status == 400


def test_requests_are_taken_as_they_are_described_and_no_other_way(place: Place, admin: Client) -> None:
    shop(place, admin, "strict")
    there = "/api/exports/strict"
    for body, kind in ((None, None), (None, "application/x-www-form-urlencoded")):  # (as `curl -d ''` sends it)
        named = {} if kind is None else {"Content_Type": kind}
        assert admin.ask("POST", f"{there}/checkpoint", body, **named).status == 200
    assert admin.ask("POST", f"{there}/restore").json["detail"].endswith("Object missing required field `checkpoint`")
    for wrong in ({"count": "1"}, {"count": True}, {"count": 1.5}, {"dry_run": "true"}, {"count": None}, [], None, "x"):
        answer = admin.ask("POST", f"{there}/undo", json.dumps(wrong).encode())
        assert (answer.status, answer.code) == (400, "invalid"), wrong
    assert admin.ask("POST", f"{there}/undo", b'{"count": 1}', Content_Type="text/plain").code == "bad_media_type"
    unknown = admin.ask("GET", f"{there}/checkpoints?limits=1")
    assert (unknown.code, unknown.json["hint"]) == ("invalid", "it is called limit here")
    wrong = admin.ask("GET", f"{there}/checkpoints?limit=0")
    assert wrong.json["detail"] == "the query is not as it has to be: Expected `int` >= 1 - at `$.limit`"
    for path in (f"{there}/", "//api/exports", "/api//exports", "/api/exports/a%2fb"):
        assert admin.ask("GET", path).code == "no_such_route", path
    assert admin.ask("GET", "/api/exports/%00").code == "not_found"
    options = admin.ask("OPTIONS", there)
    assert (options.status, options.code, options.headers["allow"]) == (405, "bad_method", "DELETE, GET, PUT")
    for method, path in (("GET", "/api/exports"), ("DELETE", there)):
        assert admin.ask(method, path, b"{}").code == "too_large", "this takes no body"
    for path in ("/api/exports", "/api/health", f"{there}/events", "/api/openapi.json"):
        head = admin.ask("HEAD", path)
        assert (head.status, head.content) == (200, b"")
    assert admin.ask("HEAD", f"{there}/none").status == 404


def test_strangers_that_ask_at_once_wait_as_well(place: Place) -> None:
    with place.server(serve_requests_per_minute="20") as server:
        head = b"GET /api/exports HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer x\r\n"
        strangers = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(60)]
        for end in (head, b"\r\n"):  # all are complete in the same moment, and are looked up one after the other
            for stranger in strangers:
                stranger.sendall(end)
        answers = [stranger.recv(4096).split(maxsplit=2)[1] for stranger in strangers]
        for stranger in strangers:
            stranger.close()
        assert set(answers) == {b"401", b"429"}
        # Two are allowed at once, and two more in a minute.
        assert answers.count(b"401") <= 4


def test_who_asks_too_often_waits(place: Place) -> None:
    with place.server(serve_requests_per_minute="20", serve_max_connections="3") as server:
        client = server.client(place.token(rights="read"))
        answers = [client.ask("GET", "/api/exports") for _ in range(25)]
        assert {answer.status for answer in answers} == {200, 429}
        assert int(answers[-1].headers["retry-after"]) >= 1
        strangers = [server.client("x").ask("GET", "/api/exports").status for _ in range(5)]
        assert strangers == [401, 401, 429, 429, 429]
        idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(3)]
        wait_until(lambda: server.client().ask("GET", "/api/health").status == 503, "the limit of connections")
        for one in idle:
            one.close()
        wait_until(lambda: server.client().ask("GET", "/api/health").status == 200, "room again")


def test_it_listens_at_a_socket_that_is_private_and_never_at_others_addresses(place: Place) -> None:
    path = place.base / "run" / "rest.sock"
    with place.server(socket=path) as server:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert "exports" in server.client(place.token(rights="read")).get("/api/exports")
        assert server.client().ask("GET", "/api/exports").status == 401
        assert server.stop() == 0
    assert not path.exists()
    for where in ("0.0.0.0:0", "[::]:0"):
        place.holdfast("serve", "--listen", where, code=4)
    place.holdfast("serve", "--listen", "nonsense", code=2)
    for text in ("127.0.0.1", "127.0.0.1:99999", "evil.example:80", "127.0.0.1:-1", ":80", "[::1]", "127.0.0.1:٣"):
        with pytest.raises(UsageError):
            serving.parse_address(text)


# -- several at once ---------------------------------------------------------------------------------------------


def test_many_write_at_once_and_nothing_is_lost(place: Place, admin: Client) -> None:
    path = shop(place, admin, "busy")

    def write(number: int) -> int:
        body = {"writes": [{"path": f"by/{number}", "content": str(number)}]}
        return admin.ask("POST", "/api/exports/busy/write-files", body).status

    assert together(*(lambda number=number: write(number) for number in range(6))) == [200] * 6
    assert sorted(os.listdir(path / "by")) == [str(number) for number in range(6)]


def test_a_key_is_done_once_and_answered_the_same(place: Place, admin: Client, server: Server) -> None:
    path = shop(place, admin, "once")
    (path / "n").write_text("1")
    first = admin.ask("POST", "/api/exports/once/checkpoint", {"label": "x"}, Idempotency_Key="k-1")
    (path / "n").write_text("2")
    second = admin.ask("POST", "/api/exports/once/checkpoint", {"label": "x"}, Idempotency_Key="k-1")
    assert (first.content, second.headers["idempotent-replayed"]) == (second.content, "true")
    other = admin.ask("POST", "/api/exports/once/checkpoint", {"label": "y"}, Idempotency_Key="k-1")
    assert (other.status, other.code) == (422, "key_reused")
    someone = server.client(place.token(rights="write"))
    assert someone.post("/api/exports/once/checkpoint", {"label": "x"}, Idempotency_Key="k-1")["created"]
    wrong = [
        admin.ask("POST", "/api/exports/once/restore", {"checkpoint": "none"}, Idempotency_Key="k-2") for _ in "12"
    ]
    assert [answer.status for answer in wrong] == [404, 404]
    assert wrong[1].headers["idempotent-replayed"] == "true"
    done = together(
        *(
            lambda: admin.ask("POST", "/api/exports/once/checkpoint", {"label": "z"}, Idempotency_Key="k-3")
            for _ in range(4)
        )
    )
    assert {answer.status for answer in done} <= {200, 409}
    assert len({answer.content for answer in done if answer.status == 200}) == 1
    assert {answer.code for answer in done if answer.status == 409} <= {"in_flight"}


# -- events ------------------------------------------------------------------------------------------------------


def test_who_listens_is_told_and_goes_on_where_they_were(place: Place, admin: Client) -> None:
    path = place.directory("heard", a="1")
    admin.post("/api/exports", {"name": "heard", "path": str(path)})
    admin.post("/api/exports/heard/checkpoint")
    watched(admin, "heard")
    with admin.events("heard") as events:
        (path / "b").write_text("2")
        seen = {}
        for event in events:
            seen[event["event"]] = event
            if event["event"] == "checkpoint":
                break
    assert seen["changed"]["data"]["paths"] == ["b"]
    assert seen["checkpoint"]["data"]["checkpoint"]["kind"] == "auto"
    admin.post("/api/exports/heard/write-files", {"writes": [{"path": "c", "content": "3"}]})
    with admin.events("heard", Last_Event_ID=seen["changed"]["id"]) as events:
        following = [next(events)["event"]]
        while following[-1] != "written":
            following.append(next(events)["event"])
    assert following[0] == "checkpoint"
    with admin.events("heard", Last_Event_ID="0badc0de-7") as events:
        assert next(events)["event"] == "reset"
    assert admin.ask("GET", "/api/exports/unheard-of/events").code == "no_export"


def test_an_export_in_production_is_saved_only_when_somebody_asks(place: Place, admin: Client) -> None:
    path = place.directory("live", a="1")
    admin.post("/api/exports", {"name": "live", "path": str(path), "mode": "production"})
    other = place.directory("beside", a="1")
    admin.post("/api/exports", {"name": "beside", "path": str(other)})
    watched(admin, "live")
    watched(admin, "beside")
    (path / "b").write_text("2")
    (other / "b").write_text("2")
    wait_until(lambda: len(admin.get("/api/exports/beside/checkpoints")["checkpoints"]) > 0, "a checkpoint")
    assert admin.get("/api/exports/live/checkpoints")["checkpoints"] == []
    assert admin.post("/api/exports/live/checkpoint")["created"]
    (path / "c").write_text("3")
    assert admin.ask("PUT", "/api/exports/live", {"mode": "development"}).json["mode"] == "development"
    wait_until(lambda: len(admin.get("/api/exports/live/checkpoints")["checkpoints"]) > 1, "a checkpoint by itself")


# -- the document ------------------------------------------------------------------------------------------------


def test_what_can_be_asked_for_is_published(server: Server) -> None:
    nobody = server.client()
    document = nobody.get("/api/openapi.json")
    assert document["openapi"] == "3.1.0"
    page = nobody.ask("GET", "/api/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert b"<script" not in page.content
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert nobody.get("/api/ready")["checks"] == {"catalog": "ok", "objects": "ok", "accepting": "ok"}


def test_it_is_not_ready_while_objects_cannot_be_kept(place: Place) -> None:
    with place.server("--no-upkeep") as server:
        client = server.client()
        objects, aside = place.home / "objects", place.home / "aside"
        assert client.ask("GET", "/api/ready").status == 200
        if objects.exists():
            objects.rename(aside)
        objects.write_text("in the way")
        try:
            wait_until(lambda: client.ask("GET", "/api/ready").status == 503, "that it is not ready")
            checks = client.ask("GET", "/api/ready").json["checks"]
            assert (checks["catalog"], checks["objects"]) == ("ok", "storage")
        finally:
            objects.unlink()
            if aside.exists():
                aside.rename(objects)
        wait_until(lambda: client.ask("GET", "/api/ready").status == 200, "that it is ready again")


def test_it_is_not_ready_while_objects_are_gone(place: Place) -> None:
    tree = place.directory("shop", f="1")
    with place.server("--no-upkeep") as server:
        client = server.client(place.token())
        client.post("/api/exports", {"name": "shop", "path": str(tree)})
        client.post("/api/exports/shop/checkpoint", {})
        objects, aside = place.home / "objects", place.home / "aside"
        objects.rename(aside)
        wait_until(lambda: client.ask("GET", "/api/ready").status == 503, "that it is not ready")
        assert client.ask("GET", "/api/ready").json["checks"]["objects"] == "integrity"
        shutil.rmtree(objects, ignore_errors=True)
        aside.rename(objects)


def test_what_is_counted_is_shown_to_prometheus(server: Server, admin: Client) -> None:
    admin.get("/api/exports")
    text = admin.ask("GET", "/metrics").content.decode()
    assert 'holdfast_http_requests_total{route="/api/exports",method="GET",status="200"}' in text
    assert 'holdfast_exports{state="watching"}' in text
    for line in text.splitlines():
        assert line.startswith("#") or float(line.rpartition(" ")[2]) >= 0


def test_snapshots_by_providers(place: Place, admin: Client) -> None:
    path = shop(place, admin, "shots")
    (path / "new.txt").write_text("new\n")
    taken = admin.post("/api/exports/shots/snapshots", {"label": "copied", "provider": "copy", "with_ignored": True})
    assert (taken["provider"], taken["label"], taken["parent"]) == ("copy", "copied", None)
    again = admin.post("/api/exports/shots/snapshots", {"provider": "copy"})
    assert again["parent"] == taken["id"]
    listed = admin.get("/api/exports/shots/snapshots")
    assert [one["id"] for one in listed["snapshots"]] == [taken["id"], again["id"]]
    assert listed["totals"] == {"snapshots": 2}
    one = f"/api/exports/shots/snapshots/{taken['id']}"
    (path / "new.txt").write_text("changed since\n")
    view = admin.post(f"{one}/mount")["path"]
    assert (Path(view) / "new.txt").read_text() == "new\n"
    assert admin.get(one)["views"] == [view]
    refused = admin.ask("DELETE", one)
    assert (refused.status, refused.code) == (409, "in_use")
    assert admin.post(f"{one}/unmount") == {"unmounted": [view]}
    assert not Path(view).exists()
    writer = Client(admin.port, place.token(rights="write"))
    about = {name: value for name, value in taken.items() if name not in ("notes", "passed_over")}
    assert writer.get("/api/exports/shots/snapshots/copied") == about
    assert writer.ask("DELETE", one).status == 403
    assert admin.ask("DELETE", one).json == {"discarded": taken["id"]}
    gone = admin.ask("GET", one)
    assert (gone.status, gone.code) == (404, "no_snapshot")
    unknown = admin.ask("POST", "/api/exports/shots/snapshots", {"provider": "none"})
    assert (unknown.status, unknown.code) == (501, "no_provider")
    shop(place, admin, "others")
    assert admin.get("/api/exports/others/snapshots")["snapshots"] == []
