"""JSON Schema of the objects in `holdfast.model.answers`, and of types that contain them.

Only interfaces that publish schemas load it: it needs the real `typing`, and msgspec.
"""

from __future__ import annotations

import sys
import typing
from functools import cache
from typing import Any

import msgspec

from holdfast.model.answers import words
from holdfast.model.json_encoder import fields, is_described

Json = dict[str, Any]


def components(kinds: typing.Sequence[Any], ref_template: str) -> tuple[list[Json], Json]:
    """A reference for each of ``kinds``, and the schemas that they refer to, by name.

    A kind is a description, a msgspec structure that may hold such, or what a `typing` annotation may be. Raises
    `TypeError` for two different ones of one name.
    """
    found: Json = {}
    references = [_schema(kind, ref_template, found) for kind in kinds]
    return references, found


def hints(kind: type) -> dict[str, Any]:
    """The types of the fields of an object, by their names; ``kind`` is a description or a msgspec structure."""
    if not is_described(kind):
        return typing.get_type_hints(kind)
    return {one.key: _hint(one.annotation, one.module) for one in fields(kind)}


def _schema(kind: Any, ref_template: str, found: Json) -> Json:
    def described(inner: type) -> Json:
        if not is_described(inner):
            raise NotImplementedError  # msgspec's protocol for a hook that does not know a type
        return _schema(_typed_dict(inner), ref_template, found)

    (reference,), parts = msgspec.json.schema_components((kind,), ref_template=ref_template, schema_hook=described)
    for name, part in parts.items():
        if found.setdefault(name, part) != part:
            raise TypeError(f"two objects are called {name}")
    return reference


@cache
def _typed_dict(kind: type) -> Any:
    """The typed dictionary that type checkers take ``kind`` for."""
    types = {
        one.key: _hint(one.annotation, one.module)
        if one.required
        else typing.NotRequired[_hint(one.annotation, one.module)]
        for one in fields(kind)
    }
    make: Any = typing.TypedDict
    made = make(kind.__name__, types)
    made.__doc__ = kind.__doc__
    return made


def _hint(annotation: str, module: str) -> Any:
    """The type that an annotation of an answer means."""
    return eval(annotation, {**vars(typing), **vars(words), **vars(sys.modules[module])})  # noqa: S307 - our own source
