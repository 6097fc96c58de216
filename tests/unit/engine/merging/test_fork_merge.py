"""Merging a fork into a workspace: the ladder, decisions by hand, the queue, and what stops it. Names I6."""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path

import pytest

import holdfast
from holdfast.engine.merging import fork_merge
from holdfast.engine.merging.reapply.resolver import ladder_of
from holdfast.engine.merging.stacked_plan import Resolution
from holdfast.engine.workspace.workspace import Workspace
from holdfast.model.answers.merges import Foreseen
from holdfast.model.errors import HoldfastError, NotFoundError, RefusedError, UsageError
from holdfast.model.json_encoder import encode

from ....contexts import context_of

AGENT = """
import json, sys
given = json.load(sys.stdin)
if given["path"].startswith("hard"):
    print(json.dumps({"decline": "too hard"}))
elif given["path"].startswith("marked"):
    print(json.dumps({"content": "<<<<<<< x\\n"}))
else:
    print(json.dumps({"content": given["current"] + "and " + given["after"], "said": "agent"}))
"""
NUMBERS = "".join(f"{number}\n" for number in range(20))


class Two:
    """A production and a fork of it, under settings of their own."""

    def __init__(self, base: Path, home: Path, flags: dict[str, object]) -> None:
        self.base, self.home, self.flags = base, home, flags
        self.tree, self.there = base / "tree", base / "fork"
        self.tree.mkdir(exist_ok=True)

    def agent(self, before: str = "") -> None:
        """Set the agent of the rung `command`: `AGENT`, after some other code."""
        script = self.base / "agent.py"
        script.write_text(before + AGENT)
        self.flags["merge.command"] = [sys.executable, str(script)]

    def begin(self, **files: str) -> None:
        self.write(self.tree, **files)
        with self.open() as workspace:
            workspace.checkpoint()
            workspace.fork("@", self.there)

    def open(self, path: Path | None = None) -> Workspace:
        return holdfast.init(path or self.tree, home=self.home, flags=self.flags)

    @staticmethod
    def write(root: Path, **files: str | None) -> None:
        for name, text in files.items():
            (root / name).write_text(text) if text is not None else (root / name).unlink()

    def fork_does(self, **files: str | None) -> None:
        self.write(self.there, **files)
        with self.open(self.there) as fork:
            fork.checkpoint()

    def merge(self, **options: object) -> fork_merge.ForkMerge:
        with self.open() as workspace:
            return workspace.merge(os.fsdecode(self.there), **options)  # type: ignore[arg-type]

    def content(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in self.tree.iterdir()}


@pytest.fixture
def two(tmp_path: Path, home: Path):
    made: list[Two] = []

    def make(ladder: tuple[str, ...] = ("structure", "text", "person"), **settings: object) -> Two:
        flags = {"merge.ladder": list(ladder), **{f"merge.{name}": value for name, value in settings.items()}}
        made.append(Two(tmp_path, home, flags))
        return made[-1]

    yield make
    for one in made:
        with one.open() as workspace:
            assert workspace.verify(read_data=True).ok


def outcomes(found: fork_merge.ForkMerge) -> dict[str, str]:
    return {os.fsdecode(one.path): one.outcome for one in found.prepared.records}


def test_both_sides_work_comes_together_and_is_taken_back_i6(two) -> None:
    pair = two()
    pair.begin(a=NUMBERS, b="b", c="c")
    pair.fork_does(a=NUMBERS.replace("15\n", "fifteen\n"), new="x")
    pair.fork_does(b=None)
    pair.write(pair.tree, a=NUMBERS.replace("3\n", "three\n", 1), c="ours")
    before = pair.content()
    found = pair.merge()
    assert outcomes(found) == {"a": "reapplied"}
    after = pair.content()
    assert after == {
        "a": NUMBERS.replace("3\n", "three\n", 1).replace("15\n", "fifteen\n"),
        "c": "ours",
        "new": "x",
    }
    with pair.open() as workspace:
        assert workspace.status().clean
        assert workspace.show().checkpoint.kind == "merge"
        with context_of(workspace) as context:
            (taken,) = context.catalog.merge_parents(workspace.resolve("@"))
        assert taken.other == found.plan.fork
        (record,) = json.loads(taken.record)["files"]
        assert (record["path"], record["outcome"], record["tried"][-1]["rung"]) == ("a", "reapplied", "text")
        workspace.undo()
        assert pair.content() == before
        workspace.redo()
        assert pair.content() == after


def test_what_is_open_stops_all_of_it(two) -> None:
    pair = two()
    pair.begin(a="a\n", b="b\n")
    pair.fork_does(a="theirs\n", b="theirs\n")
    pair.write(pair.tree, a="ours\n")
    before = pair.content()
    found = pair.merge()
    assert (found.restored, found.prepared.merged, pair.content()) == (None, None, before)
    (record,) = found.prepared.records
    assert [(one.rung, one.result) for one in record.tried] == [
        ("structure", "declined"),
        ("text", "declined"),
        ("person", "pending"),
    ]
    (said,) = found.prepared.differences.values()
    assert said == ("@@ -1 +1 @@\n-a\n+ours\n", "@@ -1 +1 @@\n-a\n+theirs\n")


@pytest.mark.parametrize(
    ("resolution", "expected"),
    [
        (Resolution(content=b"both\n"), "both\n"),
        (Resolution(prefer="ours"), "ours\n"),
        (Resolution(prefer="theirs"), "theirs\n"),
        (Resolution(), None),
    ],
)
def test_a_person_decides_what_they_were_shown(two, resolution: Resolution, expected: str | None) -> None:
    pair = two()
    pair.begin(a="a\n")
    pair.fork_does(a="theirs\n")
    pair.write(pair.tree, a="ours\n")
    with pytest.raises(RefusedError) as caught:
        pair.merge(resolutions={"a": resolution})
    assert caught.value.code == "not_shown"
    pair.merge()
    found = pair.merge(resolutions={"a": resolution})
    assert outcomes(found) == {"a": "decided"}
    assert pair.content().get("a") == expected
    assert pair.merge().prepared.merged == found.prepared.merged or pair.merge().restored is None
    assert pair.content().get("a") == expected


def test_a_decision_for_something_else_is_refused(two) -> None:
    pair = two()
    pair.begin(a="a\n", b="b\n")
    pair.fork_does(a="theirs\n")
    pair.write(pair.tree, a="ours\n")
    shown = pair.merge().plan.overlapping[0].version
    pair.write(pair.tree, a="ours, later\n")
    for resolution in (Resolution(content=b"x"), Resolution(content=b"x", version=shown), Resolution(prefer="theirs")):
        with pytest.raises(RefusedError) as caught:
            pair.merge(resolutions={"a": resolution})
        assert caught.value.code == "stale"
    assert pair.content()["a"] == "ours, later\n"
    with pytest.raises(UsageError, match="does not overlap"):
        pair.merge(resolutions={"b": Resolution(prefer="ours")})
    pair.merge()
    with pytest.raises(UsageError, match=r"merge\.max_bytes"):
        pair.merge(resolutions={"a": Resolution(content=b"x" * (2 << 20))})


def test_permissions_and_links_are_for_a_person(two) -> None:
    pair = two()
    pair.begin(a="a\n", b="b\n")
    (pair.there / "a").chmod(0o755)
    (pair.there / "b").unlink()
    (pair.there / "b").symlink_to("a")
    pair.fork_does()
    (pair.tree / "a").chmod(0o600)
    pair.write(pair.tree, b="ours\n")
    found = pair.merge()
    assert {one.why for one in found.plan.overlapping} == {"mode", "type"}
    found = pair.merge(resolutions={"a": Resolution(prefer="theirs"), "b": Resolution(content=b"neither\n")})
    assert found.restored is not None
    assert (pair.tree / "a").stat().st_mode & 0o777 == 0o755
    assert (pair.tree / "b").read_text() == "neither\n"


def test_an_agent_applies_each_small_change(two) -> None:
    pair = two(("command", "person"))
    pair.agent()
    pair.begin(a="a\n")
    pair.fork_does(a="one\n")
    pair.fork_does(a="two\n")
    pair.write(pair.tree, a="ours\n")
    found = pair.merge()
    assert pair.content()["a"] == "ours\nand one\nand two\n"
    (record,) = found.prepared.records
    assert [(one.rung, list(one.numbers), one.result, one.said) for one in record.tried] == [
        ("command", [1], "answered", "agent"),
        ("command", [2], "answered", "agent"),
    ]


def test_the_next_rung_is_asked_where_one_declines_or_is_refused(two) -> None:
    pair = two(("command", "text"))
    pair.agent()
    pair.begin(hard=NUMBERS, marked=NUMBERS)
    pair.fork_does(hard=NUMBERS + "end\n", marked=NUMBERS + "end\n")
    pair.write(pair.tree, hard="begin\n" + NUMBERS, marked="begin\n" + NUMBERS)
    found = pair.merge()
    assert pair.content() == dict.fromkeys(("hard", "marked"), "begin\n" + NUMBERS + "end\n")
    tried = {os.fsdecode(one.path): [(each.rung, each.result) for each in one.tried] for one in found.prepared.records}
    assert tried == {
        "hard": [("command", "declined"), ("text", "answered")],
        "marked": [("command", "refused"), ("text", "answered")],
    }


def test_rungs_that_take_all_at_once_are_asked_for_all_first(two) -> None:
    """Small changes that touch production's hunks, and are gone in the end, need nobody."""
    pair = two(("text",))
    pair.begin(a=NUMBERS)
    pair.fork_does(a=NUMBERS.replace("5\n", "five\n", 1))
    pair.fork_does(a=NUMBERS.replace("18\n", "eighteen\n"))
    pair.write(pair.tree, a=NUMBERS.replace("5\n", "FIVE\n", 1))
    pair.merge()
    assert pair.content()["a"] == NUMBERS.replace("5\n", "FIVE\n", 1).replace("18\n", "eighteen\n")


def test_a_file_that_is_too_large_is_for_a_person(two) -> None:
    pair = two(("text", "person"), max_bytes=1024)
    pair.begin(a=NUMBERS * 40)
    pair.fork_does(a=NUMBERS * 40 + "end\n")
    pair.write(pair.tree, a="begin\n" + NUMBERS * 40)
    found = pair.merge()
    assert outcomes(found) == {"a": "open"}
    assert [one.rung for one in found.prepared.records[0].tried] == ["person"]


def test_the_queue_is_asked_and_answered(two) -> None:
    pair = two(("queue", "text"))
    pair.begin(a="a\n")
    pair.fork_does(a="one\n")
    pair.fork_does(a="two\n")
    pair.write(pair.tree, a="ours\n")
    found = pair.merge()
    assert outcomes(found) == {"a": "pending"}
    assert found.prepared.records[0].tried[-1].id
    for number, (current, answer) in enumerate([("ours\n", "ours one\n"), ("ours one\n", "ours two\n")]):
        with pair.open() as workspace:
            change = workspace.next_reapply()
            assert change is not None
            assert (change["current"], change["changesets"]) == (current, [number + 1])
            assert workspace.next_reapply() is None, "it is held"
            given = {"version": change["version"], "content": answer}
            assert workspace.answer_reapply(change["id"], change["token"], given) == "answered"
            again = partial(workspace.answer_reapply, change["id"], change["token"], given)
            refused(again, "answered")
        found = pair.merge()
    assert found.restored is not None
    assert pair.content()["a"] == "ours two\n"


def refused(work, code: str) -> None:
    with pytest.raises(HoldfastError) as caught:
        work()
    assert caught.value.code == code


def test_hostile_answers_to_the_queue_are_refused(two) -> None:
    pair = two(("queue",))
    pair.begin(a="a\n")
    pair.fork_does(a="theirs\n")
    pair.write(pair.tree, a="ours\n")
    pair.merge()
    with pair.open() as workspace:
        change = workspace.next_reapply()
        assert change is not None
        name, token, version = change["id"], change["token"], change["version"]

        def give(name: str = name, token: str = token, **answer: object) -> None:
            workspace.answer_reapply(name, token, {"version": version, **answer})

        refused(lambda: give("0" * 32, content="x"), "no_reapply")
        refused(lambda: give(token="", content="x"), "not_held")
        refused(lambda: give(token="0" * 32, content="x"), "not_held")
        refused(lambda: give(version="0" * 32, content="x"), "bad_answer")
        refused(lambda: give(content="<<<<<<< x\n"), "bad_answer")
        refused(lambda: give(content="x" * (2 << 20)), "bad_answer")
        refused(lambda: give(delete=True), "bad_answer")
        refused(give, "bad_answer")
        give(decline="no")
    assert outcomes(pair.merge()) == {"a": "open"}


@pytest.mark.parametrize("limit", ["queue_entries", "queue_bytes"])
def test_what_is_asked_when_the_queue_is_full_is_for_the_next_rung(two, limit: str) -> None:
    pair = two(("queue", "text"), max_bytes=2 << 20, **{limit: 1 if limit == "queue_entries" else 1 << 20})
    large = "x" * 79 + "\n"
    text = NUMBERS + (large * 4000 if limit == "queue_bytes" else "")
    pair.begin(a=text, b=text)
    pair.fork_does(a=text + "end\n", b=text + "end\n")
    pair.write(pair.tree, a="begin\n" + text, b="begin\n" + text)
    found = pair.merge()
    assert outcomes(found) == {"a": "pending", "b": "reapplied"}
    tried = {os.fsdecode(one.path): one.tried for one in found.prepared.records}
    assert [(one.rung, one.result) for one in tried["b"]] == [("queue", "declined"), ("text", "answered")]
    assert (
        f"the queue is full (merge.queue_entries, {1 if limit == 'queue_entries' else 1000:,} changes"
        in tried["b"][0].said
    )
    with pair.open() as workspace:
        change = workspace.next_reapply()
        assert change is not None
        assert workspace.next_reapply() is None
        workspace.answer_reapply(change["id"], change["token"], {"version": change["version"], "decline": "no"})
    pair.flags["merge.ladder"] = ["queue"]
    found = pair.merge()
    assert outcomes(found) == {"a": "open", "b": "pending"}, "what was declined does not wait, and holds"


def test_a_merge_of_more_than_the_queue_holds_comes_to_its_end(two) -> None:
    pair = two(("queue",), queue_entries=2)
    pair.begin(**dict.fromkeys("abc", "1\n"))
    pair.fork_does(**dict.fromkeys("abc", "2\n"))
    pair.write(pair.tree, **dict.fromkeys("abc", "3\n"))
    asked: list[str] = []
    with pair.open() as workspace:
        for _ in range(2):
            pair.merge()
            while (change := workspace.next_reapply()) is not None:
                asked.append(change["path"])
                workspace.answer_reapply(
                    change["id"], change["token"], {"version": change["version"], "content": "4\n"}
                )
    assert set(outcomes(pair.merge()).values()) == {"reapplied"}
    assert asked == ["a", "b", "c"], "each once"


def test_a_dry_run_foresees_what_the_rungs_would_do_and_asks_nobody(two, tmp_path: Path) -> None:
    pair = two(("command", "queue", "structure", "text", "person"))
    pair.agent(f"open({str(tmp_path / 'asked')!r}, 'w').close()\n")
    both = {"apart": NUMBERS, "clash": "1\n", "keys.json": '{"a": 1, "b": 2}\n', "link": "x"}
    pair.begin(**both)
    pair.fork_does(**{"apart": NUMBERS + "end\n", "clash": "2\n", "keys.json": '{"a": 1, "b": 3}\n', "link": None})
    os.symlink("there", pair.there / "link")
    pair.write(pair.tree, **{"apart": "begin\n" + NUMBERS, "clash": "3\n", "keys.json": '{"a": 4, "b": 2}\n'})
    pair.write(pair.tree, link="y")
    found = pair.merge(dry_run=True)
    rungs = {
        os.fsdecode(path): [(rung.rung, rung.result) for rung in one.rungs]
        for path, one in found.prepared.foreseen.items()
    }
    asked = [("command", "asked"), ("queue", "asked")]
    assert rungs == {
        "apart": [*asked, ("structure", "declines"), ("text", "applies"), ("person", "asked")],
        "clash": [*asked, ("structure", "declines"), ("text", "declines"), ("person", "asked")],
        "keys.json": [*asked, ("structure", "applies"), ("text", "declines"), ("person", "asked")],
        "link": [("person", "asked")],
    }
    assert not any(one.applies for one in found.prepared.foreseen.values()), "the agent is asked first"
    assert not (tmp_path / "asked").exists()
    with pair.open() as workspace:
        assert workspace.next_reapply() is None
    pair.flags["merge.ladder"] = ["structure", "text", "person"]
    found = pair.merge(dry_run=True)
    assert {os.fsdecode(path): one.applies for path, one in found.prepared.foreseen.items()} == {
        "apart": True,
        "clash": False,
        "keys.json": True,
        "link": False,
    }
    told = encode(Foreseen, found.prepared.foreseen[b"clash"])
    assert [rung["rung"] for rung in told["rungs"]] == ["structure", "text", "person"]
    assert told["rungs"][0].get("said")
    assert outcomes(pair.merge()) == {"apart": "reapplied", "clash": "open", "keys.json": "reapplied", "link": "open"}


def test_another_workspace_gets_no_change_of_this_one(two, tmp_path: Path) -> None:
    """I10 within a home: whoever works in one directory is not told what is in another."""
    pair = two(("queue",))
    pair.begin(a="a\n")
    pair.fork_does(a="theirs\n")
    pair.write(pair.tree, a="ours\n")
    name = pair.merge().prepared.records[0].tried[-1].id
    (tmp_path / "other").mkdir()
    with pair.open(tmp_path / "other") as other:
        assert other.next_reapply() is None
        refused(lambda: other.answer_reapply(name, "", {"version": "", "content": ""}), "no_reapply")


def test_a_change_that_nobody_answers_in_time_goes_on(two, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.model import clock

    pair = two(("queue", "text"), lease="60s", deadline="1h")
    pair.begin(a=NUMBERS)
    pair.fork_does(a=NUMBERS + "end\n")
    pair.write(pair.tree, a="begin\n" + NUMBERS)
    assert outcomes(pair.merge()) == {"a": "pending"}
    with pair.open() as workspace:
        first = workspace.next_reapply()
        assert first is not None
        now = clock.SystemClock.now
        monkeypatch.setattr(clock.SystemClock, "now", lambda self: now(self) + 61 * 10**6)
        second = workspace.next_reapply()
        assert second is not None
        assert (second["id"], second["token"] != first["token"]) == (first["id"], True)
        refused(
            lambda: workspace.answer_reapply(
                first["id"], first["token"], {"version": first["version"], "delete": True}
            ),
            "bad_answer",
        )
        late = {"version": first["version"], "content": ""}
        refused(lambda: workspace.answer_reapply(first["id"], first["token"], late), "not_held")
        monkeypatch.setattr(clock.SystemClock, "now", lambda self: now(self) + 3601 * 10**6)
        assert workspace.next_reapply() is None
    assert outcomes(pair.merge()) == {"a": "reapplied"}
    assert pair.content()["a"] == "begin\n" + NUMBERS + "end\n"


def test_what_changes_while_agents_work_is_not_overwritten(two) -> None:
    pair = two(("command",))
    pair.agent(f"open({str(pair.tree / 'a')!r}, 'w').write('in between')\n")
    pair.begin(a="a\n")
    pair.fork_does(a="theirs\n")
    pair.write(pair.tree, a="ours\n")
    refused(pair.merge, "changed_meanwhile")
    assert pair.content()["a"] == "in between"


def test_a_deletion_is_no_silent_answer(two) -> None:
    pair = two(("text", "person"))
    pair.begin(a="a\n", b="b\n")
    pair.fork_does(a=None, b="theirs\n")
    pair.write(pair.tree, a="ours\n", b=None)
    found = pair.merge()
    assert [(one.path, one.why) for one in found.plan.overlapping] == [(b"a", "deleted_there"), (b"b", "deleted_here")]
    found = pair.merge(resolutions={"a": Resolution(prefer="theirs"), "b": Resolution(prefer="theirs")})
    assert pair.content() == {"b": "theirs\n"}


@pytest.mark.parametrize("ladder", [("text",), ("structure", "text"), ("person", "text")])
def test_no_rung_deletes_what_the_other_side_has_renamed_or_given_other_permissions(two, ladder) -> None:
    """The content is what it was, and all the same it is not for the fork alone to say that it is gone."""
    pair = two(ladder)
    pair.begin(a=NUMBERS, b=NUMBERS * 2)
    pair.fork_does(a=None, b=None)
    (pair.tree / "a").rename(pair.tree / "renamed")
    (pair.tree / "b").chmod(0o755)
    found = pair.merge()
    assert {one.path for one in found.plan.overlapping} == {b"renamed", b"b"}
    assert pair.content() == {"renamed": NUMBERS, "b": NUMBERS * 2}


def test_a_dry_run_asks_nobody_and_changes_nothing(two) -> None:
    pair = two(("command",), command=["/nonexistent"])
    pair.begin(a="a\n", b="b\n")
    pair.fork_does(a="theirs\n", b="theirs\n")
    pair.write(pair.tree, a="ours\n")
    before = pair.content()
    found = pair.merge(dry_run=True)
    assert (found.prepared.records, found.prepared.merged, pair.content()) == ([], None, before)
    assert found.plan.result == "needs_reapply"
    refused(lambda: pair.merge(resolutions={"a": Resolution(prefer="ours")}), "not_shown")


CALLS = """
import os
with open({log!r}, "a") as log:
    log.write("x")
"""


def test_answers_are_kept_while_a_merge_stays_open_and_forgotten_with_it(two, tmp_path: Path) -> None:
    log = tmp_path / "log"
    pair = two(("command", "person"))
    pair.agent(CALLS.format(log=str(log)))
    pair.begin(a="a\n", b="b\n", c="c\n")
    pair.fork_does(a="theirs\n", b="theirs\n", c="theirs\n")
    pair.write(pair.tree, a="ours\n", b="ours\n")
    (pair.tree / "c").unlink()
    (pair.tree / "c").symlink_to("a")  # for a person, so that the merge stays open
    assert outcomes(pair.merge()) == {"a": "reapplied", "b": "reapplied", "c": "open"}
    assert log.read_text() == "xx"
    assert outcomes(pair.merge()) == {"a": "reapplied", "b": "reapplied", "c": "open"}
    assert log.read_text() == "xx"
    pair.write(pair.tree, b="edited\n")
    assert outcomes(pair.merge())["b"] == "reapplied"
    assert log.read_text() == "xxx", "the answer was for another content"
    found = pair.merge(resolutions={"c": Resolution(prefer="theirs")})
    assert found.restored is not None
    assert log.read_text() == "xxx"
    with pair.open() as workspace, context_of(workspace) as context:
        with context.catalog.database.reading() as transaction:
            assert transaction.all("SELECT path FROM reapplies WHERE status = 'kept'", ()) == []
        workspace.undo()
    pair.merge(resolutions={"c": Resolution(prefer="theirs", version=found.prepared.records[2].version)})
    assert log.read_text() == "xxxxx", "the merge that was undone had its answers"


def test_another_command_is_asked_anew_and_of_answers_only_so_many_are_kept(two, tmp_path: Path) -> None:
    log = tmp_path / "log"
    names = [f"f{number}" for number in range(4)]
    pair = two(("command", "person"), queue_entries=3)
    pair.agent(CALLS.format(log=str(log)))
    pair.begin(**dict.fromkeys([*names, "open"], "a\n"))
    pair.fork_does(**dict.fromkeys(names, "theirs\n"), open="theirs\n")
    pair.write(pair.tree, **dict.fromkeys(names, "ours\n"))
    (pair.tree / "open").unlink()
    (pair.tree / "open").symlink_to("f0")
    pair.merge()
    assert len(log.read_text()) == 4
    pair.merge()
    assert len(log.read_text()) == 5
    pair.flags["merge.command"] = [*pair.flags["merge.command"], "--again"]
    pair.merge()
    assert len(log.read_text()) == 9


TOGETHER = """
import os, time
mine = {directory!r} + "/" + str(os.getpid())
open(mine, "w").close()
until = time.monotonic() + 30
while len(os.listdir({directory!r})) < {number} and time.monotonic() < until:
    time.sleep(0.02)
assert len(os.listdir({directory!r})) >= {number}
"""


def test_changes_are_given_to_agents_side_by_side(two, tmp_path: Path) -> None:
    """Each of three waits for the others: one after the other they would all fail."""
    (tmp_path / "met").mkdir()
    pair = two(("command",), calls=3)
    pair.agent(TOGETHER.format(directory=str(tmp_path / "met"), number=3))
    pair.begin(a="a\n", b="b\n", c="c\n")
    pair.fork_does(a="theirs\n", b="theirs\n", c="theirs\n")
    pair.write(pair.tree, a="1\n", b="2\n", c="3\n")
    found = pair.merge()
    assert outcomes(found) == {"a": "reapplied", "b": "reapplied", "c": "reapplied"}
    assert [one.path for one in found.prepared.records] == [b"a", b"b", b"c"]


def test_all_calls_of_a_merge_have_one_deadline(two) -> None:
    pair = two(("command",), calls=1, total_timeout="0.5s", command=["sleep", "600"])
    pair.begin(a="a\n", b="b\n")
    pair.fork_does(a="theirs\n", b="theirs\n")
    pair.write(pair.tree, a="1\n", b="2\n")
    said = [tried.said for one in pair.merge().prepared.records for tried in one.tried]
    assert said == ["merge.total_timeout, 0.5 s, is over"] * 2


PRODUCTION = """
import json, os, subprocess, sys
given = json.load(sys.stdin)
about = given["about"]
directory = about["production_directory"]
walked = [os.path.join(above, name) for above, _, files in os.walk(directory) for name in files]
found = sorted(path[len(directory) + 1 :] for path in walked)
modes = sorted({oct(os.lstat(os.path.join(directory, name)).st_mode & 0o222) for name in found})
link = os.readlink(os.path.join(directory, "link"))
holdfast = [sys.executable, "-m", "holdfast"]
shown = [
    subprocess.check_output([*holdfast, "cat", about[name] + ":" + given["path"]], text=True)
    for name in ("fork_checkpoint", "production_checkpoint", "promote_checkpoint")
]
print(json.dumps({"content": json.dumps([found, modes, link, shown]), "said": directory}))
"""


def test_an_agent_reaches_the_states_that_it_is_told_of(two, tmp_path: Path) -> None:
    script = tmp_path / "agent.py"
    script.write_text(PRODUCTION)
    pair = two(("command",), command=[sys.executable, str(script)])
    (pair.tree / "sub").mkdir()
    (pair.tree / "sub" / "deep").write_text("deep")
    (pair.tree / "link").symlink_to("sub/deep")
    (pair.tree / ".gitignore").write_text("ignored\n")
    pair.begin(a="base\n", b="base\n")
    pair.fork_does(a="theirs\n", b="theirs\n")
    pair.write(pair.tree, a="ours\n", b="ours\n", ignored="x")
    found = pair.merge()
    assert outcomes(found) == {"a": "reapplied", "b": "reapplied"}, found.prepared.records
    told = json.loads((pair.tree / "a").read_text())
    assert told == [
        [".gitignore", "a", "b", "link", "sub/deep"],
        ["0o0", "0o222"],
        "sub/deep",
        ["base\n", "ours\n", "theirs\n"],
    ]
    (directory,) = {tried.said for one in found.prepared.records for tried in one.tried}
    assert not os.path.lexists(directory)
    assert os.listdir(pair.home / "reapply") == [".lock"]


def test_what_a_fork_is_named_by(two, tmp_path: Path) -> None:
    pair = two()
    pair.begin(a="a\n")
    pair.fork_does(a="theirs\n")
    with pair.open(pair.there) as fork:
        names = [fork.id, fork.resolve("@"), os.fsdecode(fork.path)]
    with pair.open() as workspace:
        for name in names:
            assert workspace.merge(name).restored is not None
            workspace.undo()
        refused(lambda: workspace.merge(os.fsdecode(workspace.path)), "itself")
        refused(lambda: workspace.merge(workspace.id), "itself")
        with pytest.raises(NotFoundError):
            workspace.merge("nothing-of-that-name")
        (tmp_path / "plain").mkdir()
        refused(lambda: workspace.merge(os.fsdecode(tmp_path / "plain")), "no_workspace")


def test_a_ladder_is_what_the_settings_say(two) -> None:
    pair = two()
    pair.begin(a="a\n")
    with pair.open() as workspace, context_of(workspace) as context:
        assert [one.name for one in ladder_of(context).rungs] == ["structure", "text", "person"]
        every = ("person", "queue", "command", "text")
        assert [one.name for one in ladder_of(context, every).rungs] == ["person", "queue", "text"]
