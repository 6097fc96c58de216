"""A port (a `typing.Protocol`) over a connection: its signatures define the content of a request and its answer.

All arguments and results of the methods are values that msgspec can encode in JSON: numbers, texts, bytes, lists,
tuples and the typed classes of the port's module. That module imports the names in its annotations at run time.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import msgspec

from holdfast.ipc.messages import rebuild
from holdfast.model.decoders import json_decoder
from holdfast.model.errors import FormatError
from holdfast.model.log import MOST_REQUEST_ID, current_request

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from types import FunctionType


class Method:
    """One method of a port."""

    def __init__(self, name: str, function: FunctionType) -> None:
        self.name = name
        self._function = function

    @cached_property
    def _names(self) -> tuple[str, ...]:
        code = self._function.__code__
        return code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]

    @cached_property
    def _types(self) -> tuple[Any, Any]:
        names = self._names
        hints = get_type_hints(self._function)
        return tuple[tuple(hints[name] for name in names) or ()], hints["return"]

    def bind(self, remote: object, given: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
        """The arguments of a call, in the order of the signature. Raises `TypeError` as the call would."""
        if len(given) == len(self._names) and not named:
            return list(given)  # (Binding takes as long as all the rest here.)
        from inspect import signature  # (a run alone needs none)

        bound = signature(self._function).bind(remote, *given, **named)
        bound.apply_defaults()
        _, *arguments = bound.arguments.values()
        return arguments

    def decode_arguments(self, raw: msgspec.Raw) -> tuple[Any, ...]:
        """Raises `msgspec.MsgspecError`."""
        return json_decoder(self._types[0]).decode(raw)

    def decode_result(self, raw: msgspec.Raw) -> Any:
        """Raises `msgspec.MsgspecError`."""
        return json_decoder(self._types[1]).decode(raw)


class _Request(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    method: str
    arguments: msgspec.Raw
    request_id: Annotated[str, msgspec.Meta(max_length=MOST_REQUEST_ID)] = ""
    """The id of its cause, as in both logs."""


class _Answer(msgspec.Struct):
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: dict[str, Any] | None = None


_request = json_decoder(_Request)
_answer = json_decoder(_Answer)
_MISTAKES = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class Port:
    """The methods of protocols, and how each travels."""

    def __init__(self, *protocols: type, without: Collection[str] = ()) -> None:
        """``without`` are methods that are not transmitted."""
        self.methods = {
            name: Method(name, function)
            for protocol in protocols
            for name, function in vars(protocol).items()
            if callable(function) and not name.startswith("_") and name not in without
        }

    def encode_request(self, name: str, arguments: list[Any]) -> bytes:
        """The body of a request, including the id of its cause (`logged`). Raises `FormatError` for a text that is not
        UTF-8.
        """
        asked = current_request()
        try:
            return msgspec.json.encode((name, arguments, asked) if asked else (name, arguments))
        except UnicodeEncodeError as error:
            raise FormatError(f"a text that is not UTF-8 cannot be sent: {error.reason}") from None

    def decode_request(self, body: bytes) -> tuple[str, tuple[Any, ...]]:
        """The method and its arguments, of the right types. Raises `FormatError` naming the mistake."""
        try:
            found = _request.decode(body)
        except _MISTAKES as error:
            raise FormatError(f"request: {error}") from error
        name, arguments = found.method, found.arguments
        if name not in self.methods:
            raise FormatError(f"request: there is no method {name[:40]!r}")
        try:
            return name, self.methods[name].decode_arguments(arguments)
        except _MISTAKES as error:
            raise FormatError(f"{name}: {error}") from error

    def request_id(self, body: bytes) -> str | None:
        """The id of the cause of a request, if it contains one; the request is one that `decode_request` accepts."""
        return _request.decode(body).request_id or None

    def decode_answer(self, name: str, body: bytes) -> Any:
        """The result. Raises the error that the answer holds instead; `FormatError` if it is no answer."""
        try:
            answer = _answer.decode(body)
            if answer.error is None:
                return self.methods[name].decode_result(answer.result)
        except _MISTAKES as error:
            raise FormatError(f"the answer to {name}: {error}") from error
        raise rebuild(answer.error)


def encode_result(result: object) -> bytes:
    """The body of an answer."""
    return msgspec.json.encode({"result": result})


def remote(port: Port) -> type[Any]:
    """A class with the port's methods, each of which calls ``self._ask(name, arguments)``."""

    def forward(method: Method) -> Callable[..., Any]:
        def call(self: Any, *given: Any, **named: Any) -> Any:
            return self._ask(method.name, method.bind(self, given, named))

        call.__name__ = method.name
        return call

    return type("Remote", (), {name: forward(method) for name, method in port.methods.items()})
