"""Addresses: any path survives its way into one and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.api.web.addresses import Addresses, Query
from holdfast.model.errors import UsageError


@given(st.binary(max_size=60).map(lambda path: path.strip(b"/")))
def test_a_path_survives(path):
    address = Addresses("/base").page("raw/x", path=path, n=1)
    assert address.isascii()
    assert not set(address) & set("<>\"' ")
    assert Query(address.partition("?")[2].encode()).path("path") == path


@given(st.binary(max_size=60))
def test_any_query_can_be_read(raw):
    query = Query(raw)
    query.text("a")
    query.path("a")


def test_what_is_empty_is_not_said():
    assert Addresses("/b").page("diff", from_="a", to="", path=b"", x=None) == "/b/diff?from=a"


def test_choices_and_numbers_are_looked_at():
    query = Query(b"a=x&b=7&c=-1&d=%39%39999999999")
    assert query.choice("none", ("split", "unified")) == "split"
    assert query.number("b", 0, 10) == 7
    assert query.number("none", 3, 10) == 3
    for bad in ("c", "d", "a"):
        with pytest.raises(UsageError):
            query.number(bad, 0, 10)
    with pytest.raises(UsageError, match="one of split"):
        query.choice("a", ("split",))
