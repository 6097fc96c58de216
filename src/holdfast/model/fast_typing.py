"""Names of `typing` for modules that short commands load: type checkers see the real ones, and nothing is imported.

Importing `typing` takes 4 milliseconds, and `re` with it 6 more: together a tenth of a command that scans ten thousand
files and never uses a type. Annotations must be text, ``from __future__ import annotations``; names that only
annotations use are imported from `typing` under ``if TYPE_CHECKING``. Classes whose types are read at run time, such as
msgspec's structs, must use the real `typing` throughout: to msgspec a `Literal` of this module is any `str`.
"""

from __future__ import annotations

TYPE_CHECKING = False
"""True for type checkers."""

if TYPE_CHECKING:
    from typing import Generic, Literal, NewType, Protocol, TypedDict, TypeVar, cast
else:

    class _Choice:
        def __getitem__(self, values):
            return type(values[0] if isinstance(values, tuple) else values)

    Literal = _Choice()
    """``Literal["a", "b"]`` is `str`."""

    class Generic:
        """A base that can be given parameters, and forgets them."""

        def __class_getitem__(cls, _):
            return cls

    class Protocol(Generic):
        """A base for classes that define the members of others."""

    class TypedDict:
        """A base for classes that describe an object of JSON; `holdfast.model.json_schema` makes real ones of them."""

    def NewType(_, kind):  # noqa: N802 - as there
        """``kind`` itself."""
        return kind

    def TypeVar(name, *_, **__):  # noqa: N802 - as there
        """Its name, for `Generic` to forget."""
        return name

    def cast(_, value):
        """``value`` as it is."""
        return value


__all__ = ["TYPE_CHECKING", "Generic", "Literal", "NewType", "Protocol", "TypeVar", "TypedDict", "cast"]
