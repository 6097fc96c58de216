"""What a text of JSON would take in memory is known before it is parsed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.wire.json_lines import has_more_values

MOST = 3
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.text(alphabet='",[{:\\ \n'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)


def counted(value: Any) -> int:
    match value:
        case dict():
            return 1 + len(value) + sum(map(counted, value.values()))
        case list():
            return 1 + sum(map(counted, value))
        case _:
            return 1


@given(JSON, st.booleans(), st.sampled_from([None, 1]))
def test_many_values_are_more_and_few_are_not(value: Any, escaped: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=escaped, indent=indent).encode("utf-8", "surrogatepass")
    many = has_more_values(text, MOST)
    if counted(value) <= MOST:
        assert not many
    if counted(value) > 2 * MOST:
        assert many


@pytest.mark.parametrize("unit", [b"{},", b"[],", b"[", b'{"":', b"1,", b'""', b'" ",', b'"\\""', b"[" + b" " * 99])
def test_what_many_values_begin_with_is_enough(unit: bytes) -> None:
    assert has_more_values(unit * 10_000, 1000)


@pytest.mark.parametrize("unit", [b",[{:", b'\\"', b"\\\\", b'\\\\\\"', b"a,b\\n", b" "])
@pytest.mark.parametrize("end", [b"", b'"', b"\\", b'","'])
def test_what_stands_in_a_string_is_no_value(unit: bytes, end: bytes) -> None:
    assert not has_more_values(b'{"content": "' + unit * 100_000 + end, 10)


@given(st.binary())
def test_any_bytes(text: bytes) -> None:
    assert not has_more_values(text, len(text) + 1)
