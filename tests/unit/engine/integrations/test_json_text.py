"""Changing one place in a text of JSON leaves all others as they are."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine.integrations import _json_text as json_text
from holdfast.engine.integrations._json_text import parse
from holdfast.model.errors import FormatError, RefusedError

LAYOUTS = {
    "two spaces": '{\n  "a": 1,\n  "b": {\n    "c": [1, 2]\n  }\n}\n',
    "tabs": '{\n\t"a": 1,\n\t"b": {\n\t\t"c": [\n\t\t\t1\n\t\t]\n\t}\n}',
    "carriage returns": '{\r\n  "a": 1,\r\n  "b": {\r\n    "c": [\r\n      1\r\n    ]\r\n  }\r\n}\r\n',
    "comments": '// first\n{\n  "a": 1, // about a\n  /* about b */ "b": {\n    "c": [ 1 ] // c\n    // end\n  }\n}\n',
    "trailing commas": '{\n  "a": 1,\n  "b": {\n    "c": [\n      1,\n    ],\n  },\n}\n',
    "a mark at the start": '\ufeff{\n  "a": 1,\n  "b": {\n    "c": [\n      1\n    ]\n  }\n}\n',
}


@pytest.mark.parametrize("text", LAYOUTS.values(), ids=LAYOUTS)
def test_what_is_put_in_and_taken_out_again_leaves_no_trace(text: str) -> None:
    added = json_text.put(text, ("b", "new"), {"x": [1]})
    assert parse(added).value == {"a": 1, "b": {"c": parse(text).value["b"]["c"], "new": {"x": [1]}}}
    lines = [line.rstrip(",") for line in added.splitlines()]
    assert [line for line in text.splitlines() if line.split("//")[0].rstrip(", ") not in "".join(lines)] == []
    assert json_text.delete(added, ("b", "new")) == text
    longer = json_text.append(text, ("b", "c"), {"y": None})
    assert parse(longer).value["b"]["c"][-1] == {"y": None}
    last = len(parse(longer).value["b"]["c"]) - 1
    assert parse(json_text.delete(longer, ("b", "c", last))).value == parse(text).value


def test_layout_and_line_ends_are_those_of_the_file() -> None:
    assert json_text.put('{\n\t"a": 1\n}', ("b",), {"c": 1}) == '{\n\t"a": 1,\n\t"b": {\n\t\t"c": 1\n\t}\n}'
    assert json_text.put('{\r\n "a": 1\r\n}', ("b",), {"c": 1}) == '{\r\n "a": 1,\r\n "b": {\r\n  "c": 1\r\n }\r\n}'
    assert json_text.put("{}", ("b",), "ü") == '{\n  "b": "ü"\n}'


def test_a_comment_to_the_end_of_the_line_does_not_swallow_what_follows() -> None:
    assert json_text.put('{"a": 1 // x\n}', ("b",), 2) == '{"a": 1, // x\n  "b": 2\n}'
    assert parse(json_text.delete('{ // c\n "a": 1, "b": 2}', ("a",))).value == {"b": 2}


def test_a_member_is_replaced_where_it_stands() -> None:
    assert json_text.put('{"a": {"x": 1}, "b": 2}', ("a",), 3) == '{"a": 3, "b": 2}'


@pytest.mark.parametrize("text", ['{"a": 1}', '{"a": []}', '{"a": "x"}', "[]", "1"])
def test_what_is_in_the_way_is_left_alone(text: str) -> None:
    with pytest.raises(RefusedError, match="has another type"):
        json_text.put(text, ("a", "b"), 1)
    with pytest.raises(RefusedError, match="has another type"):
        json_text.append(text if text != '{"a": []}' else '{"a": {}}', ("a",), 1)


MALFORMED = {
    "": "line 1, column 1: expected a value",
    "{": "line 1, column 2: expected a name",
    '{"a": 1 "b": 2}': "line 1, column 9: expected a comma",
    '{\n "a": 1,\n "a": 2}': "line 3, column 5: the name 'a' comes twice",
    '{"a" 1}': "expected a colon",
    "{} {}": "something follows",
    '{"a": tru}': "expected a value",
    '{"a": NaN}': "expected a value",
    '{"a": 01}': "expected a value",
    '{"a": "\n"}': "a string has no end",
    "{'a': 1}": "expected a name in double quotes",
    "[,]": "expected a value",
    "/* no end": "expected a value",
    "[" * 102: "nested more than 100 deep",
    "[" + "1" * 5000 + "]": "a number is too long",
}


@pytest.mark.parametrize(("text", "reason"), MALFORMED.items(), ids=range(len(MALFORMED)))
def test_what_is_malformed_is_refused_with_the_place(text: str, reason: str) -> None:
    with pytest.raises(FormatError) as raised:
        parse(text)
    assert reason in raised.value.message


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES, st.sampled_from([None, 1, 2, "\t"]), st.booleans())
def test_whatever_json_writes_is_read(value: Any, indent: Any, ascii_only: bool) -> None:
    assert parse(json.dumps(value, indent=indent, ensure_ascii=ascii_only)).value == value


@given(st.text(alphabet='{}[]",:/*\n \\a1-.ebtrue'))
def test_any_text_is_read_or_refused(text: str) -> None:
    """I12."""
    try:
        parse(text)
    except FormatError:
        pass
    try:
        expected = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        return
    assert parse(text).value == expected


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) != len(pairs):
        raise ValueError
    return dict(pairs)


OBJECTS = st.dictionaries(st.text(max_size=3), VALUES, max_size=4)


@given(OBJECTS, st.sampled_from([None, 1, 2, "\t"]), st.text(max_size=3), VALUES)
def test_putting_in_and_taking_out_is_nothing(value: dict[str, Any], indent: Any, name: str, item: Any) -> None:
    text = json.dumps({"outer": value}, indent=indent)
    added = json_text.put(text, ("outer", name), item)
    assert json.loads(added) == {"outer": {**value, name: item}}
    if name not in value:
        assert json.loads(json_text.delete(added, ("outer", name))) == {"outer": value}
