"""The schema of a description is that of the typed dictionary that type checkers take it for."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec
import pytest

from holdfast.model import fast_typing, json_schema
from holdfast.model.answers import workspace
from holdfast.model.answers.words import Path, Time

REF = "#/defs/{name}"


class Inner(fast_typing.TypedDict):
    """An object in another one."""

    path: Path


class Outer(fast_typing.TypedDict):
    """What holds it."""

    from_: Annotated[Time | None, "elsewhere"]
    some: list[Inner]
    word: Literal["a", "b"]
    perhaps: NotRequired[Annotated[dict[str, int], "elsewhere"]]


class Further(Outer):
    """It, and more."""

    more: Inner | None


class TypedInner(TypedDict):
    """An object in another one."""

    path: str


Typed = TypedDict(
    "Typed",
    {
        "from": str | None,
        "some": list[TypedInner],
        "word": Literal["a", "b"],
        "perhaps": NotRequired[dict[str, int]],
        "more": TypedInner | None,
    },
)
Typed.__doc__ = Further.__doc__


class Structure(msgspec.Struct):
    """A structure of a face."""

    items: list[Inner]


def renamed(value: Any) -> Any:
    """A schema with the names of the described objects."""
    text = msgspec.json.encode(value).decode()
    return msgspec.json.decode(text.replace("TypedInner", "Inner").replace('"Typed"', '"Further"').encode())


def test_it_is_that_of_the_same_typed_dictionary() -> None:
    (reference,), found = json_schema.components([Further], REF)
    assert reference == {"$ref": "#/defs/Further"}
    _, expected = msgspec.json.schema_components([Typed], ref_template=REF)
    assert found == renamed(expected)


def test_structures_and_annotations_may_hold_descriptions() -> None:
    references, found = json_schema.components([Structure, list[Inner], int], REF)
    assert references == [
        {"$ref": "#/defs/Structure"},
        {"type": "array", "items": {"$ref": "#/defs/Inner"}},
        {"type": "integer"},
    ]
    assert found["Structure"]["properties"]["items"] == references[1]
    assert found["Inner"]["required"] == ["path"]


def test_two_objects_of_one_name_are_refused() -> None:
    other = type("Inner", (fast_typing.TypedDict,), {"__annotations__": {"one": "int"}, "__module__": __name__})
    with pytest.raises(TypeError, match="Inner"):
        json_schema.components([Inner, other], REF)


def test_what_json_cannot_hold_is_refused() -> None:
    with pytest.raises(TypeError):
        json_schema.components([object], REF)


def test_the_types_of_the_fields() -> None:
    assert json_schema.hints(workspace.Counts) == {"added": int, "modified": int, "deleted": int}
    assert json_schema.hints(Structure) == {"items": list[Inner]}
    assert set(json_schema.hints(Further)) == {"from", "some", "word", "perhaps", "more"}
