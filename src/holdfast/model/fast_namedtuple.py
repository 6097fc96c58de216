"""Tuples whose fields have names: `typing.NamedTuple` without its cost at import.

The standard library compiles the annotation of every field and a constructor for every class: about 0.15 milliseconds
each time. A short command loads some sixty such classes, and never uses their types. Annotations must be text: ``from
__future__ import annotations``.
"""

from __future__ import annotations

from holdfast.model.fast_typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any, NamedTuple
else:
    from collections import _tuplegetter as field_at

    class _Named(tuple):
        """The methods of all these classes; see `collections.namedtuple`."""

        __slots__ = ()

        def _replace(self, /, **named: Any) -> Any:
            values = [named.pop(field, value) for field, value in zip(self._fields, self, strict=True)]
            if named:
                raise TypeError(f"{type(self).__name__} has no field {next(iter(named))!r}")
            return tuple.__new__(type(self), values)

        def _asdict(self) -> dict[str, Any]:
            return dict(zip(self._fields, self, strict=True))

        @classmethod
        def _make(cls, values: Any) -> Any:
            return cls(*values)

        def __repr__(self) -> str:
            fields = ", ".join(f"{field}={value!r}" for field, value in zip(self._fields, self, strict=True))
            return f"{type(self).__name__}({fields})"

        def __getnewargs__(self) -> tuple[Any, ...]:
            return tuple(self)

    class _Maker(type):
        """Makes the classes that are derived from `NamedTuple`."""

        def __new__(mcs, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> type:
            if not bases:
                return super().__new__(mcs, name, bases, body)
            fields = tuple(body.get("__annotations__", ()))
            defaults = {field: body[field] for field in fields if field in body}
            getters = {field: field_at(at, None) for at, field in enumerate(fields)}
            body |= {
                "_fields": fields,
                "_field_defaults": defaults,
                "__match_args__": fields,
                "__slots__": (),
                **getters,
            }
            body["__new__"] = _constructor(fields, defaults)
            return type(name, (_Named, *bases[1:]), body)

    class NamedTuple(metaclass=_Maker):
        """The base of classes whose annotated names are the fields of a tuple."""

    def _constructor(fields: tuple[str, ...], defaults: dict[str, Any]) -> Any:
        count, make = len(fields), tuple.__new__

        def new(cls: type, /, *values: Any, **named: Any) -> Any:
            if named or len(values) != count:
                values = (*values, *_rest(cls, fields[len(values) :], defaults, named))
                if len(values) != count or named:
                    raise TypeError(f"{cls.__name__} takes {', '.join(fields)}")
            return make(cls, values)

        return new

    def _rest(cls: type, fields: tuple[str, ...], defaults: dict[str, Any], named: dict[str, Any]) -> list[Any]:
        """The values of ``fields``, taken out of ``named`` or, where they are not in there, the ``defaults``."""
        try:
            return [named.pop(field) if field in named else defaults[field] for field in fields]
        except KeyError as error:
            raise TypeError(f"{cls.__name__} needs {error}") from None


__all__ = ["NamedTuple"]
