"""Promotions over HTTP: builds in processes of their own, and changes that wait to be applied anew."""

from __future__ import annotations

import http.client
import json
import os
import pwd
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from ..promoted import PAGES, make_app, needs_isolation
from ..waiting import wait_until
from .rest import Client, Place, Server, together, watched

ISOLATION = "namespace" if shutil.which("bwrap") else "none"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """One home for all tests here."""
    return Place(tmp_path_factory.mktemp("promoted"))


@pytest.fixture(scope="module")
def server(place: Place) -> Iterator[Server]:
    """One server; what it did to the store is sound."""
    with place.server(watch_debounce="200ms", merge_ladder="queue", promote_isolation="none") as server:
        yield server
        assert server.stop() == 0, server.log.read_text()
        assert not [line for line in server.logged() if "exception" in line]
        assert not re.search("hft_[0-9a-f]{16}_", server.log.read_text()), "a secret is in the log"
    assert json.loads(place.holdfast("--json", "verify", "--read-data"))["ok"]


@pytest.fixture(scope="module")
def admin(place: Place, server: Server) -> Client:
    """Who may do everything."""
    return server.client(place.token())


def app(place: Place, admin: Client, name: str, *, auto: bool = False, **settings: str) -> tuple[Path, Path]:
    """A web application in production, and a fork of it, both exports."""
    root = place.root / name
    make_app(root, sys.executable)
    if settings:
        lines = "".join(f"{key} = {value}\n" for key, value in settings.items())
        (root / "holdfast.toml").write_text(f"[promote]\n{lines}")
    admin.post("/api/exports", {"name": name, "path": str(root), "auto_checkpoint": auto})
    admin.post(f"/api/exports/{name}/checkpoint", {"label": "base"})
    made = admin.post(f"/api/exports/{name}/fork", {"name": f"{name}-fork", "auto_checkpoint": False})
    return root, Path(made["export"]["path"])


def test_a_fork_arrives_in_production_with_progress_and_can_be_undone(place: Place, admin: Client) -> None:
    root, fork = app(place, admin, "web")
    (fork / "src/pages.py").write_text(PAGES.replace('"one"', '"ONE"'))
    with admin.events("web") as events:
        done = admin.post("/api/exports/web/promote", {"fork": "web-fork", "message": "-- why", "author": "me"})
        phases: list[str] = []
        for event in events:
            if event["event"] == "promotion":
                assert (event["data"]["promotion"], event["data"]["result"]) == (done["id"], "promoted")
                break
            if event["event"] == "progress" and event["data"]["operation"] == "promote":
                phases.append(event["data"]["phase"])
    assert phases == ["plan", "copy", "setup", "build", "check", "swap", "restart", "finish"]
    assert (done["result"], done["production"], done["changesets"]) == ("promoted", str(root), 1)
    assert (done["changes"]["apply_theirs"], done["changes"]["overlapping"]) == (1, 0)
    assert b"ONE" in (root / "src/pages.py").read_bytes()
    assert (root / "dist/app.pyz").exists()
    listed = admin.get("/api/exports/web/promotions?limit=1")["promotions"]
    assert [(one["id"], one["result"], one["theirs"]) for one in listed] == [(done["id"], "promoted", done["theirs"])]
    assert admin.get(f"/api/exports/web/promotions/{done['id']}") == done
    assert admin.ask("GET", f"/api/exports/web-fork/promotions/{done['id']}").code == "no_promotion"
    newest = admin.get("/api/exports/web/checkpoints?limit=1")["checkpoints"][0]
    assert (newest["id"], newest["author"], newest["message"]) == (done["checkpoint"], "me", "-- why")
    again = admin.post("/api/exports/web/promote", {"promote_checkpoint": done["theirs"]})
    assert again["result"] == "unchanged"
    admin.post("/api/exports/web/undo")
    assert b"ONE" not in (root / "src/pages.py").read_bytes()
    pages = admin.get("/api/exports/web/promotions?limit=1")
    rest = admin.get(f"/api/exports/web/promotions?limit=1&cursor={pages['next_cursor']}")
    assert [pages["promotions"][0]["id"], rest["promotions"][0]["id"]] == [again["id"], done["id"]]
    assert rest["next_cursor"] is None


def test_a_build_that_fails_changes_nothing_and_is_answered_once_to_a_key(place: Place, admin: Client) -> None:
    root, fork = app(place, admin, "broken")
    (fork / "src/other.py").write_text("VALUE = (\n")
    theirs = admin.post("/api/exports/broken-fork/checkpoint")["checkpoint_id"]
    body = {"promote_checkpoint": theirs}
    failed = admin.post("/api/exports/broken/promote", body, Idempotency_Key="b")
    assert (failed["result"], failed["failed_step"], failed["exit_code"]) == ("build_failed", "build_command", 1)
    assert "SyntaxError" in failed["output"]
    assert (failed["changesets"], failed["changes"]["apply_theirs"]) == (1, 1)
    assert failed["recovery"] == "Fork removed. Production unchanged."
    assert (root / "src/other.py").read_text() == "VALUE = 1\n"
    replayed = admin.ask("POST", "/api/exports/broken/promote", body, Idempotency_Key="b")
    assert (replayed.json, replayed.headers["idempotent-replayed"]) == (failed, "true")
    assert len(admin.get("/api/exports/broken/promotions")["promotions"]) == 1


def test_what_both_have_changed_waits_for_an_agent_and_arrives_with_its_answer(place: Place, admin: Client) -> None:
    root, fork = app(place, admin, "queue", build='["true"]')
    writer = admin.__class__(admin.port, place.token("--export", "queue", rights="write"))
    (root / "src/other.py").write_text("VALUE = 7\n")
    (fork / "src/other.py").write_text("VALUE = 2\n")
    assert admin.get("/api/exports/queue")["configuration"]["merge"]["ladder"] == ["queue"]
    open_ = admin.post("/api/exports/queue/promote", {"fork": "queue-fork"})
    assert (open_["result"], [one["path"] for one in open_["overlapping_files"]]) == ("needs_reapply", ["src/other.py"])
    waiting = writer.get("/api/exports/queue/reapplies")["reapplies"]
    assert [(one["path"], one["held"]) for one in waiting] == [("src/other.py", False)]
    assert admin.get("/api/exports/queue-fork/reapplies")["reapplies"] == []
    assert admin.post("/api/exports/queue-fork/reapplies/take")["change"] is None
    change = writer.post("/api/exports/queue/reapplies/take", Idempotency_Key="mine")["change"]
    assert change == writer.post("/api/exports/queue/reapplies/take", Idempotency_Key="mine")["change"]
    assert (change["path"], change["current"], change["after"]) == ("src/other.py", "VALUE = 7\n", "VALUE = 2\n")
    assert writer.post("/api/exports/queue/reapplies/take")["change"] is None
    assert writer.get("/api/exports/queue/reapplies")["reapplies"][0]["held"]
    path = f"/api/exports/queue/reapplies/{change['id']}/answer"
    fine = {"token": change["token"], "version": change["version"], "content": "VALUE = 9\n", "said": "both"}
    for wrong, code in (
        ({**fine, "token": "0" * 32}, "not_held"),
        ({**fine, "version": "x"}, "bad_answer"),
        ({**fine, "delete": True}, "bad_answer"),
        ({"token": "x", "version": change["version"]}, "bad_answer"),
    ):
        assert writer.ask("POST", path, wrong).code == code, wrong
    assert admin.ask("POST", path.replace("/queue/", "/queue-fork/"), fine).code == "no_reapply"
    assert writer.post(path, fine) == {"id": change["id"], "status": "answered"}
    assert writer.ask("POST", path, fine).code == "answered"
    assert (root / "src/other.py").read_text() == "VALUE = 7\n"
    assert admin.post("/api/exports/queue/promote", {"fork": "queue-fork"})["result"] == "promoted"
    assert (root / "src/other.py").read_text() == "VALUE = 9\n"


def test_what_both_have_changed_is_shown_and_decided(place: Place, admin: Client) -> None:
    root, fork = app(place, admin, "decided", build='["true"]')
    for name in ("src/other.py", "src/pages.py", "requirements"):
        (root / name).write_text("HERE = 7\n")
        (fork / name).write_text("THERE = 2\n")
    path = "/api/exports/decided/promote"
    open_ = admin.post(path, {"fork": "decided-fork"})
    shown = {one["path"]: one for one in open_["overlapping_files"]}
    assert shown["src/other.py"]["fork_diff"].endswith("+THERE = 2\n")
    resolutions: list[dict[str, Any]] = [
        {"path": "src/other.py", "content": "BOTH = 9\n", "version": shown["src/other.py"]["version"]},
        {"path": "src/pages.py", "take": True},
        {"path": "requirements", "delete": True},
    ]

    def body(first: dict[str, Any]) -> dict[str, Any]:
        return {"fork": "decided-fork", "resolutions": [{**resolutions[0], **first}, *resolutions[1:]]}

    for wrong in ({"keep": True}, {"content_base64": "*"}, {"content": None}):
        assert admin.ask("POST", path, body(wrong)).status == 400, wrong
    assert admin.ask("POST", path, body({"path": "../x"})).code == "escape"
    assert admin.post(path, body({"version": "0" * 32}))["code"] == "stale"
    done = admin.post(path, body({}), Idempotency_Key="decided")
    assert (done["result"], {one["outcome"] for one in done["files"]}) == ("promoted", {"decided"})
    assert admin.post(path, body({}), Idempotency_Key="decided")["id"] == done["id"]
    assert (root / "src/other.py").read_text() == "BOTH = 9\n"
    assert (root / "src/pages.py").read_text() == "THERE = 2\n"
    assert not (root / "requirements").exists()


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({}, 400, "invalid"),
        ({"fork": "hostile-fork", "promote_checkpoint": "0" * 24}, 400, "invalid"),
        ({"fork": "../hostile-fork"}, 400, "invalid"),
        ({"fork": "--sweep"}, 400, "invalid"),
        ({"promote_checkpoint": "--sweep"}, 400, "invalid"),
        ({"promote_checkpoint": "0" * 24}, 404, "no_checkpoint"),
        ({"fork": "nobody"}, 404, "no_export"),
        ({"fork": "hostile"}, 400, "usage"),
        ({"fork": "hostile-fork", "message": "a\0b"}, 400, "invalid"),
        ({"fork": "hostile-fork", "command": "true"}, 400, "invalid"),
    ],
)
def test_what_makes_no_sense_is_refused(
    place: Place, admin: Client, body: dict[str, Any], status: int, code: str
) -> None:
    if not (place.root / "hostile").exists():
        app(place, admin, "hostile")
    answer = admin.ask("POST", "/api/exports/hostile/promote", body)
    assert (answer.status, answer.code) == (status, code)
    assert admin.get("/api/exports/hostile/promotions")["promotions"] == []


def test_words_that_look_like_options_and_commands_are_neither(place: Place, admin: Client) -> None:
    root, fork = app(place, admin, "words", build='["true"]')
    (fork / "new").write_text("new\n")
    said = f"--to=/; $(touch {root}/pwned)\n--sweep"
    done = admin.post("/api/exports/words/promote", {"fork": "words-fork", "message": said, "author": "-w"})
    assert done["result"] == "promoted"
    newest = admin.get("/api/exports/words/checkpoints?limit=1")["checkpoints"][0]
    assert (newest["message"], newest["author"]) == (said, "-w")
    assert not (root / "pwned").exists()


def test_i10_who_may_promote_what(place: Place, server: Server, admin: Client) -> None:
    root, fork = app(place, admin, "mine", build='["true"]')
    _, other = app(place, admin, "theirs", build='["true"]')
    (fork / "new").write_text("mine\n")
    (other / "new").write_text("theirs\n")
    secret = admin.post("/api/exports/theirs-fork/checkpoint")["checkpoint_id"]
    writer = server.client(place.token(rights="write"))
    assert writer.ask("POST", "/api/exports/mine/promote", {"fork": "mine-fork"}).code == "forbidden"
    reader = server.client(place.token(rights="read"))
    for method, path in (("GET", ""), ("POST", "/take"), ("POST", f"/{'0' * 32}/answer")):
        body = {"token": "x", "version": "x", "decline": "x"} if "answer" in path else {} if path else None
        assert reader.ask(method, f"/api/exports/mine/reapplies{path}", body).code == "forbidden"
    scoped = server.client(place.token("--export", "mine", "--export", "mine-fork"))
    assert scoped.ask("POST", "/api/exports/mine/promote", {"fork": "theirs-fork"}).code == "no_export"
    assert scoped.ask("POST", "/api/exports/mine/promote", {"promote_checkpoint": secret}).code == "no_checkpoint"
    assert scoped.ask("POST", "/api/exports/theirs/promote", {"fork": "mine-fork"}).code == "no_export"
    for path in ("promotions", f"promotions/{'0' * 16}", "reapplies"):
        assert scoped.ask("GET", f"/api/exports/theirs/{path}").code == "no_export"
    stranger = server.client(place.token(tenant="other"))
    assert stranger.ask("POST", "/api/exports/mine/promote", {"fork": "mine-fork"}).code == "no_export"
    # What it runs would see the directories of exports that the token is not for.
    refused = scoped.ask("POST", "/api/exports/mine/promote", {"fork": "mine-fork"})
    assert (refused.status, refused.code) == (409, "not_isolated")
    assert not (root / "new").exists()
    assert admin.post("/api/exports/mine/promote", {"fork": "mine-fork"})["result"] == "promoted"


def test_nothing_is_saved_by_itself_while_it_builds_and_others_are_served(place: Place, admin: Client) -> None:
    gate = place.base / "gate"
    os.mkfifo(gate)
    root, fork = app(place, admin, "slow", auto=True, build=f'["sh", "-c", "echo at >{gate}; cat {gate}"]')
    (fork / "new").write_text("new\n")
    watched(admin, "slow")
    before = len(admin.get("/api/exports/slow/checkpoints")["checkpoints"])
    found: list[Any] = []
    asked: dict[str, Any] = {
        "path": "/api/exports/slow/promote",
        "body": {"fork": "slow-fork"},
        "Idempotency_Key": "slow",
    }
    work = Thread(target=lambda: found.append(admin.post(**asked)))
    work.start()
    assert gate.read_text() == "at\n"
    again = admin.ask("POST", **asked)
    assert (again.status, again.code) == (409, "in_flight"), "at once"
    under_way = admin.get("/api/exports/slow/promotions")["promotions"][0]
    assert (under_way["phase"], under_way["result"]) == ("building", "")
    with admin.events("slow") as events:
        (root / "aside.db").write_text("ignored\n")
        (root / "edited").write_text("meanwhile\n")
        assert next(event for event in events if event["event"] == "changed")
    taken = admin.post("/api/exports/slow/checkpoint", {"label": "asked for"})
    assert taken["created"], "nothing had saved it by itself"
    gate.write_text("")
    assert gate.read_text() == "at\n", "production was edited, so it is built anew"
    gate.write_text("")
    work.join(60)
    assert (found[0]["result"], found[0]["replans"]) == ("promoted", 1)
    assert admin.post(**asked) == found[0]
    assert (root / "edited").read_text() == "meanwhile\n"
    kinds = [one["kind"] for one in admin.get("/api/exports/slow/checkpoints")["checkpoints"]]
    assert "auto" not in kinds[: len(kinds) - before], kinds
    (root / "after").write_text("after\n")
    wait_until(lambda: admin.get("/api/exports/slow/checkpoints")["checkpoints"][0]["kind"] == "auto", "an auto one")


def test_two_at_once_are_made_one_after_the_other(place: Place, admin: Client) -> None:
    root, fork = app(place, admin, "both", build='["true"]')
    (fork / "one").write_text("1\n")
    first = admin.post("/api/exports/both-fork/checkpoint")["checkpoint_id"]
    made = admin.post("/api/exports/both/fork", {"name": "both-other", "auto_checkpoint": False})
    (Path(made["export"]["path"]) / "two").write_text("2\n")
    second = admin.post("/api/exports/both-other/checkpoint")["checkpoint_id"]
    done = together(
        *(
            lambda one=one: admin.post("/api/exports/both/promote", {"promote_checkpoint": one})
            for one in (first, second)
        )
    )
    assert [one["result"] for one in done] == ["promoted", "promoted"]
    assert ((root / "one").exists(), (root / "two").exists()) == (True, True)


def test_i3_a_signal_takes_a_build_back_and_its_key_begins_it_anew(tmp_path: Path) -> None:
    place = Place(tmp_path)
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    token = place.token()
    with place.server(promote_isolation="none") as server:
        client = server.client(token)
        root, fork = app(place, client, "cut", build=f'["sh", "-c", "echo at >{gate}; cat {gate}"]')
        (fork / "new").write_text("new\n")
        theirs = client.post("/api/exports/cut-fork/checkpoint")["checkpoint_id"]
        found: list[Any] = []
        body = {"promote_checkpoint": theirs}
        work = Thread(
            target=lambda: found.append(client.ask("POST", "/api/exports/cut/promote", body, Idempotency_Key="k"))
        )
        work.start()
        assert gate.read_text() == "at\n"
        assert server.stop() == 0
        work.join(60)
        assert (found[0].status, found[0].code) == (503, "shutting_down")
        assert not (root / "new").exists()
        assert [name for name in os.listdir(place.root) if name.startswith(".holdfast")] == []
    with place.server(promote_isolation="none") as server:
        client = server.client(token)
        again = Thread(
            target=lambda: found.append(client.ask("POST", "/api/exports/cut/promote", body, Idempotency_Key="k"))
        )
        again.start()
        assert gate.read_text() == "at\n"
        gate.write_text("")
        again.join(60)
        assert found[1].json["result"] == "promoted"
        assert (root / "new").exists()
        listed = client.get("/api/exports/cut/promotions")["promotions"]
        assert [(one["result"], one["code"]) for one in listed] == [("promoted", ""), ("failed", "interrupted")]


def test_i3_a_server_that_was_killed_is_told_by_the_key_how_it_ended(tmp_path: Path) -> None:
    place = Place(tmp_path)
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    token = place.token()
    body = {"fork": "killed-fork"}
    with place.server(promote_isolation="none") as server:
        client = server.client(token)
        root, fork = app(place, client, "killed", build=f'["sh", "-c", "echo at >{gate}; cat {gate}"]')
        (fork / "new").write_text("new\n")

        def ask() -> None:
            with pytest.raises((ConnectionError, http.client.HTTPException)):
                client.ask("POST", "/api/exports/killed/promote", body, Idempotency_Key="k")

        work = Thread(target=ask)
        work.start()
        assert gate.read_text() == "at\n"
        server.stop(9)
        work.join(60)
    with place.server(promote_isolation="none") as server:
        client = server.client(token)
        busy = client.ask("POST", "/api/exports/killed/promote", body, Idempotency_Key="k")
        assert (busy.status, busy.code) == (409, "promotion_busy")
        gate.write_text("")
        wait_until(lambda: client.get("/api/exports/killed/promotions")["promotions"][0]["phase"] == "ended", "its end")
        (fork / "later").write_text("not asked for\n")
        done = client.post("/api/exports/killed/promote", body, Idempotency_Key="k")
        assert done["result"] == "promoted"
        assert ((root / "new").exists(), (root / "later").exists()) == (True, False)
        assert len(client.get("/api/exports/killed/promotions")["promotions"]) == 1


@needs_isolation
def test_i10_what_is_built_sees_nothing_that_the_token_is_not_for(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with place.server("--no-upkeep") as server:
        admin = server.client(place.token())
        other = server.client(place.token(tenant="other"))
        for name in ("served", "deleted"):
            path = place.directory(name, secret="of another\n")
            other.post("/api/exports", {"name": name, "path": str(path)})
        made = Path(other.post("/api/exports", {"name": "made"})["path"])
        (made / "secret").write_text("of another\n")
        for name in ("deleted", "made"):
            assert other.ask("DELETE", f"/api/exports/{name}").status == 200
        beside = place.directory("beside", secret="of the same\n")
        admin.post("/api/exports", {"name": "beside", "path": str(beside), "auto_checkpoint": False})
        look = f'["sh", "-c", "cat {place.root}/*/secret {made}/secret; echo done; exit 3"]'
        _, fork = app(place, admin, "seen", build=look)
        (fork / "new").write_text("new\n")
        scoped = server.client(place.token("--export", "seen", "--export", "seen-fork"))
        for client in (admin, scoped):
            failed = client.post("/api/exports/seen/promote", {"fork": "seen-fork"})
            assert (failed["result"], failed["exit_code"]) == ("build_failed", 3)
            assert "done" in failed["output"]
            assert "of another" not in failed["output"]
            assert client is admin or "of the same" not in failed["output"]
        # An export that lies where nobody else is to look is built all the same.
        (place.root / "seen" / "holdfast.toml").write_text('[promote]\nbuild = ["sh", "-c", "cat new > built"]\n')
        (fork / "holdfast.toml").write_text('[promote]\nbuild = ["sh", "-c", "cat new > built"]\n')
        (place.root / "seen" / "more").write_text("more\n")
        assert admin.post("/api/exports/seen-fork/promote", {"fork": "seen"})["result"] == "promoted"
        assert (fork / "built").read_text() == "new\n"
        assert server.stop() == 0


@needs_isolation
def test_i10_what_is_built_does_not_see_an_export_that_is_made_meanwhile(tmp_path: Path) -> None:
    # (Temporary directories are not seen in any case.)
    with tempfile.TemporaryDirectory(dir=pwd.getpwuid(os.getuid()).pw_dir) as base:
        place = Place(Path(base))
        gate = tmp_path / "gate"
        gate.mkdir()
        os.mkfifo(gate / "fifo")
        with place.server("--no-upkeep", isolation_writable=str(gate)) as server:
            admin, other = (server.client(place.token(tenant=tenant)) for tenant in ("local", "other"))
            look = (
                f'["sh", "-c", "echo at >{gate}/fifo; cat {gate}/fifo; cat {place.root}/*/secret; echo done; exit 3"]'
            )
            _, fork = app(place, admin, "seen", build=look)
            (fork / "new").write_text("new\n")
            scoped = server.client(place.token("--export", "seen", "--export", "seen-fork"))
            for number, client in enumerate((admin, scoped)):
                found: list[Any] = []
                work = Thread(
                    target=lambda client=client, found=found: found.append(
                        client.ask("POST", "/api/exports/seen/promote", {"fork": "seen-fork"})
                    )
                )
                work.start()
                assert (gate / "fifo").read_text() == "at\n"
                for whose, maker in (("another", other), ("the same", admin)):
                    path = place.directory(f"{whose}{number}".replace(" ", ""), secret=f"of {whose}\n")
                    maker.post("/api/exports", {"name": path.name, "path": str(path), "auto_checkpoint": False})
                (gate / "fifo").write_text("")
                work.join(60)
                failed = found[0].json
                assert (failed["result"], failed["exit_code"]) == ("build_failed", 3), failed
                assert "done" in failed["output"]
                assert "of another" not in failed["output"]
                assert client is admin or "of the same" not in failed["output"]
            assert server.stop() == 0


def test_an_export_whose_directory_is_gone_is_promoted_to_by_nobody(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with place.server("--no-upkeep", promote_isolation="none") as server:
        admin = server.client(place.token())
        root, fork = app(place, admin, "lost", build='["true"]')
        (fork / "new").write_text("new\n")
        root.rename(tmp_path / "elsewhere")
        shutil.rmtree(tmp_path / "elsewhere")
        refused = admin.ask("POST", "/api/exports/lost/promote", {"fork": "lost-fork"})
        assert (refused.status, refused.code) == (404, "workspace_gone")
        assert admin.get("/api/exports/lost/promotions")["promotions"] == [], "nothing was begun"


def test_i10_without_isolation_nothing_runs_beside_what_another_tenant_may_serve(tmp_path: Path) -> None:
    """Nothing in there is served yet, and it is theirs all the same. What one's own token may serve is no secret."""
    place = Place(tmp_path)
    theirs = tmp_path / "theirs"
    place.holdfast("serve", "token", "create", "--tenant", "other", "--rights", "admin", "--root", str(theirs))
    place.token(tenant="third")  # its root is the one of all
    with place.server("--no-upkeep", promote_isolation="none") as server:
        admin = server.client(place.token())
        root, fork = app(place, admin, "mine", build='["true"]')
        body = {"fork": "mine-fork"}
        for number, make in enumerate((lambda: None, theirs.mkdir)):  # not there yet; empty
            make()
            (fork / f"new {number}").write_text("new\n")
            assert admin.post("/api/exports/mine/promote", body)["result"] == "promoted"
        (theirs / "secret").write_text("theirs\n")
        (fork / "more").write_text("new\n")
        refused = admin.ask("POST", "/api/exports/mine/promote", body)
        assert (refused.status, refused.code) == (409, "not_isolated")
        assert not (root / "more").exists()
        allowed = server.client(place.token("--root", str(theirs)))
        assert allowed.post("/api/exports/mine/promote", body)["result"] == "promoted"


@needs_isolation
def test_i10_what_is_built_does_not_see_a_root_that_is_made_meanwhile(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=pwd.getpwuid(os.getuid()).pw_dir) as base:
        place = Place(Path(base))
        root = Path(base) / "theirs" / "below"
        place.holdfast("serve", "token", "create", "--tenant", "other", "--rights", "admin", "--root", str(root))
        gate = tmp_path / "gate"
        gate.mkdir()
        os.mkfifo(gate / "fifo")
        with place.server("--no-upkeep", isolation_writable=str(gate)) as server:
            admin = server.client(place.token())
            look = f'["sh", "-c", "echo at >{gate}/fifo; cat {gate}/fifo; cat {root}/*/secret; echo done; exit 3"]'
            _, fork = app(place, admin, "seen", build=look)
            (fork / "new").write_text("new\n")
            found: list[Any] = []
            work = Thread(
                target=lambda: found.append(admin.ask("POST", "/api/exports/seen/promote", {"fork": "seen-fork"}))
            )
            work.start()
            assert (gate / "fifo").read_text() == "at\n"
            (root / "one").mkdir(parents=True)
            (root / "one" / "secret").write_text("of another\n")
            (gate / "fifo").write_text("")
            work.join()
            assert "of another" not in found[0].json["output"]
            assert "done" in found[0].json["output"]
