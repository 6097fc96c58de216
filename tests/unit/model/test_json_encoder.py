"""A value becomes the object that its description says."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from holdfast.model import answers, json_schema
from holdfast.model.answers import merges, sessions, workspace
from holdfast.model.checkpoint import Checkpoint
from holdfast.model.command_results import Diff, Status
from holdfast.model.entries import Change, Counts, NotCaptured, file_entry
from holdfast.model.fast_typing import TypedDict
from holdfast.model.ids import CheckpointId, WorkspaceId, hash_bytes
from holdfast.model.json_encoder import encode, encode_all, fields, is_described

if TYPE_CHECKING:
    from typing import Annotated, NotRequired

    from holdfast.model.answers.words import (
        ContentHash,
        Milliseconds,
        NanoTime,
        OctalMode,
        OctalPermissions,
        Path,
        PlainText,
        Seconds,
        SystemPath,
        Time,
    )

HASH = hash_bytes(b"x")
TIME, TIME_TEXT = 1_771_000_000_123_456, "2026-02-13T16:26:40.123456Z"


class Value(NamedTuple):
    """What a use-case might answer."""

    one: Any = None
    other: Any = None


class Words(TypedDict):
    """One field for each word."""

    path: Path
    system: SystemPath
    plain: PlainText
    time: Time
    nano: NanoTime
    hash: ContentHash
    permissions: OctalPermissions
    mode: OctalMode
    milliseconds: Milliseconds
    seconds: Seconds


def test_how_each_word_is_written() -> None:
    assert encode(
        Words,
        path=b"a\\b\xff",
        system="a\\b\udcff",
        plain="a\\b\udcff",
        time=TIME,
        nano=TIME * 1000 + 999,
        hash=HASH,
        permissions=0o644,
        mode=0o100755,
        milliseconds=1.23456,
        seconds=2.7,
    ) == {
        "path": "a\\\\b\\xff",
        "system": "a\\\\b\\xff",
        "plain": "a\\b\\xff",
        "time": TIME_TEXT,
        "nano": TIME_TEXT,
        "hash": f"blake3:{HASH.hex()}",
        "permissions": "0644",
        "mode": "100755",
        "milliseconds": 1.235,
        "seconds": 3,
    }


class Inner(TypedDict):
    """An object in another one."""

    one: Path


class Nested(TypedDict):
    """Lists and objects of objects and words."""

    one: list[Inner]
    other: dict[PlainText, list[Path]] | None


def test_lists_maps_and_objects_hold_what_they_say() -> None:
    assert encode(Nested, Value([Value(b"a"), {"one": "already"}], {"\udcff": (b"b",)})) == {
        "one": [{"one": "a"}, {"one": "already"}],
        "other": {"\\xff": ["b"]},
    }
    assert encode(Nested, Value(())) == {"one": [], "other": None}
    assert encode_all(Inner, [Value(b"a"), Value(b"b")]) == [{"one": "a"}, {"one": "b"}]


def doubled(value: Value) -> int:
    return 2 * value.one


class Placed(TypedDict):
    """Fields that are not where their names say."""

    deep: Annotated[Path | None, "one.other.one"]
    text: Annotated[str, "one.other.other", ""]
    found: Annotated[bool, "one.one", False]
    more: Annotated[list[int], "one.one", []]
    from_: Annotated[int, "other"]
    perhaps: NotRequired[Annotated[str, "one.one"]]
    absent: NotRequired[int]


class Computed(TypedDict):
    """What a function makes."""

    two: Annotated[int, doubled]


def test_where_fields_are() -> None:
    assert encode(Placed, Value(Value([7], Value(b"p", "t")), 5)) == {
        "deep": "p",
        "text": "t",
        "found": [7],
        "more": [7],
        "from": 5,
        "perhaps": [7],
    }
    assert encode(Placed, Value(None, 5)) == {"deep": None, "text": "", "found": False, "more": [], "from": 5}
    assert encode(Computed, Value(4)) == {"two": 8}
    assert encode(Computed, Value(4), two=1) == {"two": 1}


class Base(TypedDict):
    """What others begin with."""

    first: int
    second: Path


class Further(Base):
    """One that adds a field, and says another one anew."""

    third: int
    second: Time


def test_what_is_inherited_comes_first_and_may_be_said_anew() -> None:
    assert [one.key for one in fields(Further)] == ["first", "second", "third"]
    assert encode(Further, first=1, second=TIME, third=3)["second"] == TIME_TEXT


def test_a_field_that_the_value_or_the_object_does_not_have_is_a_mistake() -> None:
    with pytest.raises(AttributeError):
        encode(Base, Value())
    with pytest.raises(TypeError, match="Base has no forth, fourth"):
        encode(Base, first=1, second=b"", fourth=4, forth=4)


def status(*changes: Change) -> Status:
    """A status with these changes."""
    made = Checkpoint(
        CheckpointId("c" * 24), WorkspaceId("w" * 16), None, HASH, "manual", ("l",), TIME, Counts(1), 1, 2, 3, 4, 0
    )
    return Status(b"/w\xff", made, changes, [NotCaptured(b"p", "socket")], True, None)


def test_a_status() -> None:
    entry, link = file_entry(HASH, 1, 0o644), file_entry(HASH, 1, 0o755)
    found = status(Change(b"a", None, entry), Change(b"m", entry, link), Change(b"d", entry, None))
    assert list(encode(workspace.Status, found).items()) == [
        ("workspace", "/w\\xff"),
        ("last_checkpoint", "c" * 24),
        ("clean", False),
        ("added", ["a"]),
        ("modified", ["m"]),
        ("deleted", ["d"]),
        ("not_captured", [{"path": "p", "reason": "socket"}]),
        ("watching", True),
        ("unfinished_restore", None),
        ("watch_failure", None),
        ("next_save_at", None),
        ("next_save_by", None),
    ]


def test_a_field_is_added_in_one_place() -> None:
    """Where the engine knows it already: the object and its schema have it, and the page is asked for it
    (tests/unit/model/answers/test_json_reference.py).
    """

    class Labelled(workspace.Status):
        label: Annotated[str, "last_checkpoint.label", ""]

    assert encode(Labelled, status())["label"] == "l"
    (_,), parts = json_schema.components([Labelled], "#/{name}")
    assert parts["Labelled"]["properties"]["label"] == {"type": "string"}
    assert "label" in parts["Labelled"]["required"]


def described() -> Iterator[type]:
    """Every answer."""
    for module in pkgutil.iter_modules(answers.__path__, f"{answers.__name__}."):
        for each in vars(importlib.import_module(module.name)).values():
            if is_described(each) and each.__module__ == module.name:
                yield each


@pytest.mark.parametrize("kind", list(described()), ids=lambda kind: kind.__qualname__)
def test_the_encoder_and_the_schema_see_the_same_objects(kind: type) -> None:
    """Names that only type checkers know would be written as they are."""
    for one in fields(kind):
        known = [each for each in vars(importlib.import_module(one.module)).values() if is_described(each)]
        for name in _names(json_schema.hints(kind)[one.key]):
            assert name in known or not is_described(name)


def _names(hint: Any) -> Iterator[Any]:
    yield hint
    for each in getattr(hint, "__args__", ()):
        yield from _names(each)


def test_what_is_no_answer_is_not_described() -> None:
    assert is_described(workspace.Status)
    assert not is_described(Status)
    assert not is_described("Status")
    assert {one.key for one in fields(workspace.RenamedFile)} >= {"from", "to", "similarity", "diff"}
    assert {one.name for one in fields(merges.ForeseenRung) if not one.required} == {"said"}
    assert [one.key for one in fields(sessions.Executed)][-3:] == ["session", "directory_after", "not_kept"]
    assert not is_described(Diff)
