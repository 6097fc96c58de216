"""Tuples with names behave as the standard library's."""

from __future__ import annotations

import pickle
import typing
from typing import Any

import pytest

from holdfast.model import fast_namedtuple


class Theirs(typing.NamedTuple):
    """A doc."""

    first: int
    second: str = "two"

    @property
    def both(self) -> str:
        """A property, as classes may have."""
        return f"{self.first}{self.second}"


class Ours(fast_namedtuple.NamedTuple):
    """A doc."""

    first: int
    second: str = "two"

    @property
    def both(self) -> str:
        """A property, as classes may have."""
        return f"{self.first}{self.second}"


@pytest.mark.parametrize(
    ("args", "keywords"), [((1,), {}), ((1, "b"), {}), ((), {"first": 1}), ((1,), {"second": "b"})]
)
def test_one_is_made_by_position_by_name_and_by_default(args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    ours, theirs = Ours(*args, **keywords), Theirs(*args, **keywords)
    assert ours == theirs == tuple(theirs)
    assert hash(ours) == hash(theirs)
    assert (ours.first, ours.second, ours.both) == (theirs.first, theirs.second, theirs.both)
    assert repr(ours) == repr(theirs).replace("Theirs", "Ours")
    assert ours._asdict() == theirs._asdict()
    assert ours._replace(second="c") == theirs._replace(second="c")
    assert type(ours._replace(first=2)) is Ours
    assert Ours._make(theirs) == ours


@pytest.mark.parametrize(
    ("args", "keywords"),
    [((), {}), ((1, "b", 3), {}), ((1,), {"first": 1}), ((1,), {"third": 1}), ((), {"second": "b"})],
)
def test_what_makes_none_is_refused(args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    for kind in (Theirs, Ours):
        with pytest.raises(TypeError):
            kind(*args, **keywords)


def test_a_field_that_is_none_cannot_be_replaced() -> None:
    with pytest.raises(TypeError, match="third"):
        Ours(1)._replace(third=3)


def test_one_does_not_change() -> None:
    one = Ours(1)
    with pytest.raises(AttributeError):
        setattr(one, "first", 2)  # noqa: B010 - as it is, not as the checker of types sees it
    with pytest.raises(AttributeError):
        setattr(one, "other", 2)  # noqa: B010


def test_the_class_says_what_its_fields_are() -> None:
    assert (Ours._fields, Ours._field_defaults) == (Theirs._fields, Theirs._field_defaults)
    assert Ours.__doc__ == Theirs.__doc__
    match Ours(1):
        case Ours(first, second):
            assert (first, second) == (1, "two")


def test_one_survives_being_pickled() -> None:
    assert pickle.loads(pickle.dumps(Ours(1))) == Ours(1)
    assert type(pickle.loads(pickle.dumps(Ours(1)))) is Ours
