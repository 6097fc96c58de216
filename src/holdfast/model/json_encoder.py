"""Encodes the results of use-cases as the JSON objects that the classes of `holdfast.model.answers` describe.

The annotation of a field tells how its value is written, and with ``Annotated`` where it comes from. ``Annotated[str,
"row.id"]``: the attribute ``id`` of the value's ``row``. ``Annotated[str, "result.stdout", ""]``: the same, and an
empty text where ``result`` is None. ``Annotated[str, f]``: the result of the function ``f`` of the class's module for
the value. A name that would be a keyword ends with an underscore, which the object leaves out. ``NotRequired`` fields
are left out where they are None; all others are present.

Annotations are parsed as text, once for each class, so that `typing` and msgspec need not be loaded.
"""

from __future__ import annotations

import sys
from operator import attrgetter
from os import fsencode

from holdfast.model.clock import isoformat
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING, TypedDict, TypeVar
from holdfast.model.ids import format_hash
from holdfast.model.paths import display

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeAlias

T = TypeVar("T")


class Field(NamedTuple):
    """One field of a description."""

    name: str
    """In the class."""
    key: str
    """In the object."""
    annotation: str
    """Without where its value is, and whether it may be left out."""
    read: Callable[[Any], Any]
    """Where its value is."""
    required: bool
    module: str
    """Where the names in its annotation are known."""


def encode(kind: type[T], value: Any = None, /, **more: Any) -> T:
    """``value`` as an object of ``kind``; the fields in ``more`` are taken from there, and have to be its own.

    A value that is an object already stays as it is.
    """
    if type(value) is dict and not more:
        return value  # pyright: ignore[reportReturnType, reportUnknownVariableType]
    found: dict[str, Any] = {}
    plan = _plan(kind)
    if more and (unknown := more.keys() - {entry[0] for entry in plan}):
        raise TypeError(f"{kind.__name__} has no {', '.join(sorted(unknown))}")
    for name, key, read, write, required in plan:
        item = more[name] if name in more else read(value)
        if item is not None:
            found[key] = item if write is None else write(item)
        elif required:
            found[key] = None
    return found  # pyright: ignore[reportReturnType]


def encode_all(kind: type[T], values: Any) -> list[T]:
    """Each of ``values`` as an object of ``kind``."""
    return [encode(kind, value) for value in values]


def fields(kind: type) -> list[Field]:
    """The fields of ``kind``, in the order of the object: inherited ones first."""
    found: dict[str, Field] = {}
    for each in reversed(kind.__mro__):
        for name, annotation in vars(each).get("__annotations__", {}).items():
            found[name] = _field(name, annotation, each.__module__)
    return list(found.values())


def is_described(kind: object) -> bool:
    """True for a class that describes an object."""
    return isinstance(kind, type) and issubclass(kind, TypedDict)  # pyright: ignore[reportArgumentType]


def _field(name: str, annotation: str, module: str) -> Field:
    required = not annotation.startswith("NotRequired[")
    if not required:
        annotation = annotation[len("NotRequired[") : -1]
    read: Callable[[Any], Any] = attrgetter(name) if required else lambda value: getattr(value, name, None)
    if annotation.startswith("Annotated["):
        # The compiler rewrites annotations with single quotes; no type contains a quote.
        annotation, _, source = annotation[len("Annotated[") : -1].partition(", '")
        if source:
            path, _, default = source.partition("'")
            read = _follow(path, _EMPTY[default.removeprefix(", ")])
        else:
            annotation, _, source = annotation.rpartition(", ")
            read = getattr(sys.modules[module], source)
    return Field(name, name.removesuffix("_"), annotation, read, required, module)


_EMPTY: dict[str, Any] = {"": None, "''": "", "0": 0, "False": False, "{}": {}, "[]": []}
"""Values of a path whose object is missing."""


def _follow(path: str, missing: Any) -> Callable[[Any], Any]:
    """A function that reads a path of attributes."""
    names = path.split(".")

    def read(value: Any) -> Any:
        for name in names:
            if value is None:
                return missing
            value = getattr(value, name)
        return value

    return read


_Plan: TypeAlias = "list[tuple[str, str, Callable[[Any], Any], Callable[[Any], Any] | None, bool]]"
"""For each field its name and key, what reads it, what writes it, and whether it is required."""
_plans: dict[type, _Plan] = {}


def _plan(kind: type) -> _Plan:
    found = _plans.get(kind)
    if found is None:
        found = [
            (one.name, one.key, one.read, _writer(one.annotation, one.module), one.required) for one in fields(kind)
        ]
        _plans[kind] = found
    return found


def _writer(annotation: str, module: str) -> Callable[[Any], Any] | None:
    """A function that writes a value of this annotation; None: the value is written unchanged."""
    annotation = annotation.removesuffix(" | None")
    if annotation.startswith("list["):
        item = _writer(annotation[len("list[") : -1], module)
        return list if item is None else lambda values: [item(value) for value in values]
    if annotation.startswith("dict["):
        keys, _, values = annotation[len("dict[") : -1].partition(", ")
        key, value = _writer(keys, module) or _same, _writer(values, module) or _same
        return lambda items: {key(name): value(item) for name, item in items.items()}
    known = _WRITERS.get(annotation)
    if known is not None:
        return known
    kind = _named(annotation, module)
    if is_described(kind):
        return lambda value: encode(kind, value)
    return None


def _named(name: str, module: str) -> Any:
    """The meaning of a name in a module; None for a name that only type checkers see."""
    found: Any = sys.modules[module]
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _same(value: Any) -> Any:
    return value


def plain(text: str) -> str:
    r"""A text from the system: each byte that is not UTF-8 becomes ``\xHH``."""
    return fsencode(text).decode("utf-8", "backslashreplace")


_WRITERS: dict[str, Callable[[Any], Any]] = {
    "Path": display,
    "SystemPath": lambda text: display(fsencode(text)),
    "PlainText": plain,
    "Time": isoformat,
    "NanoTime": lambda nanoseconds: isoformat(nanoseconds // 1000),
    "ContentHash": format_hash,
    "OctalPermissions": "{:04o}".format,
    "OctalMode": "{:06o}".format,
    "Milliseconds": lambda number: round(number, 3),
    "Seconds": round,
}
"""How the words of `holdfast.model.answers.words` are written."""
