"""The messages as JSON Schema: ``python -m holdfast.api.stdio.schema`` prints docs/reference/stdio-schema.json."""

from __future__ import annotations

import json
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.api._log_redaction import Vocabulary, vocabulary
from holdfast.api.stdio import _messages as messages
from holdfast.api.stdio._directory_operations import REQUESTS
from holdfast.api.stdio._event_messages import EVENTS
from holdfast.model.json_schema import components

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Json = dict[str, Any]

_REF = "#/$defs/{name}"
_REQUEST_ID: Json = {"type": "string", "minLength": 1, "maxLength": 128}


def schema() -> Json:
    """All messages, in both directions. Later versions may add fields to the server's messages."""
    payloads, given = _components([payload for payload, _ in REQUESTS.values()])
    said, told = _components([*(result for _, result in REQUESTS.values()), *EVENTS.values(), messages.Failure])
    requests: Json = {}
    responses: Json = {}
    for name, (payload, result) in REQUESTS.items():
        request = _object({"type": {"const": name}, "request_id": _REQUEST_ID, "payload": payloads[payload]})
        if not any(field.required for field in msgspec.structs.fields(payload)):
            request["required"].remove("payload")
        requests[f"{name}.request"] = {**request, "additionalProperties": False}
        responses[f"{name}.response"] = _response("ok", {"payload": said[result]}, _REQUEST_ID)
    responses["error.response"] = _response(
        "error", {"error": said[messages.Failure]}, {"anyOf": [_REQUEST_ID, {"type": "null"}]}
    )
    events = {name: _object({"type": {"const": name}, "payload": said[event]}) for name, event in EVENTS.items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"holdfast stdio, version {messages.VERSION}",
        "description": "One line of the protocol, in either direction. See docs/reference/stdio.md.",
        "anyOf": [{"$ref": _REF.format(name="client")}, {"$ref": _REF.format(name="server")}],
        "$defs": {
            "client": _any(requests),
            "server": _any({**responses, **events}),
            **requests,
            **responses,
            **events,
            **given,
            **told,
        },
    }


def text() -> str:
    """The file."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


def _components(kinds: Iterable[type]) -> tuple[Mapping[type, Json], Json]:
    """A reference for each of ``kinds``, and the definitions that they refer to."""
    each = list(dict.fromkeys(kinds))
    references, found = components(each, _REF)
    return dict(zip(each, references, strict=True)), found


def _object(properties: Json) -> Json:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _response(status: str, more: Json, request_id: Json) -> Json:
    return _object({"type": {"const": "response"}, "request_id": request_id, "status": {"const": status}, **more})


def _any(names: Iterable[str]) -> Json:
    return {"anyOf": [{"$ref": _REF.format(name=name)} for name in names]}


if __name__ == "__main__":
    sys.stdout.write(text())


# The names in messages of `holdfast stdio` that the log may show.


@cache
def known() -> Vocabulary:
    """All names in the schema."""
    return vocabulary([schema()])
