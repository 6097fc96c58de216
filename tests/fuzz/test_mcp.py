"""I12: whatever a client of the Model Context Protocol sends, on each way in that is ours."""

from __future__ import annotations

import base64
import json
import os
import socket
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from mcp.shared.message import SessionMessage

from holdfast.api._request_arguments import path_in
from holdfast.api.mcp import _resources as resources
from holdfast.api.mcp import _tools as tools
from holdfast.api.mcp import _transport as transport
from holdfast.api.mcp._pagination import decode_cursor, encode_cursor, page
from holdfast.api.mcp._text_content import OutputExcerpt, whole_characters
from holdfast.api.mcp._transport import Connection
from holdfast.model.errors import HoldfastError, NotFoundError, UsageError
from holdfast.model.paths import display

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=9,
)


@given(st.text(max_size=99) | st.binary(max_size=60).map(lambda data: base64.urlsafe_b64encode(data).decode()))
@settings(max_examples=600, deadline=None)
def test_cursors(text: str) -> None:
    try:
        found = decode_cursor("steps", text, int)
    except UsageError as error:
        assert error.code == "bad_cursor"
    else:
        assert isinstance(found, int)


@given(st.lists(st.integers(), unique=True, max_size=30), st.integers(1, 7))
def test_pages_are_the_list(items: list[int], limit: int) -> None:
    out: list[int] = []
    given: str | None = None
    while not out or given is not None:
        shown, given = page(items, lambda item: item, "steps", given, int, limit)
        out += shown
        if not items:
            break
    assert out == items
    with pytest.raises(UsageError):
        page(items, lambda item: item, "changes", encode_cursor("steps", 1), int, limit)


@given(st.text(max_size=60) | st.text(max_size=60).map(lambda text: resources.ROOT + text))
@settings(max_examples=600, deadline=None)
def test_addresses_of_resources(uri: str) -> None:
    try:
        found = resources.parse_uri(uri)
    except NotFoundError:
        return
    assert found.checkpoint
    assert found.path is None or isinstance(found.path, bytes)


PARTS = st.lists(st.sampled_from(["..", ".", "", "a", "b", "\\x2e\\x2e", "root", "\\\\", "ä"]), max_size=7)


@given(st.text(max_size=30) | PARTS.map("/".join) | PARTS.map(lambda parts: "/srv/root/" + "/".join(parts)))
@settings(max_examples=1000, deadline=None)
def test_paths_stay_inside(text: str) -> None:
    """I7."""
    try:
        path = path_in(b"/srv/root", text)
    except HoldfastError:
        return
    assert not path.startswith(b"/")
    assert b".." not in path.split(b"/")
    assert path_in(b"/srv/root", display(path)) == path


@given(
    st.sampled_from(tools.TOOLS),
    st.dictionaries(
        st.sampled_from(["path", "command", "cursor", "limit", "count", "step", "paths", "name"]) | st.text(),
        VALUES | st.integers(0, 9) | st.text(max_size=5),
        max_size=4,
    ),
)
@settings(max_examples=1000, deadline=None)
def test_arguments_are_taken_as_their_schema_says(tool: tools.Tool, arguments: dict[str, Any]) -> None:
    try:
        request = tools.convert(tool, arguments)
    except UsageError as error:
        assert error.code == "bad_arguments"
        return
    said = {name: value for name, value in arguments.items() if value is not None}
    Draft202012Validator(tools.schema(tool.takes)).validate(said)
    assert msgspec.to_builtins(request)


@given(st.lists(st.binary(max_size=50), max_size=20), st.integers(8, 64))
def test_what_is_kept_of_an_output_is_its_ends(pieces: list[bytes], most: int) -> None:
    kept = OutputExcerpt(most)
    for piece in pieces:
        kept.add(piece)
    whole = b"".join(pieces)
    assert kept.omitted == max(0, len(whole) - most)
    if not kept.omitted:
        assert kept.text() == whole.decode(errors="replace")
    else:
        assert kept.text().startswith(whole[: most // 4].decode(errors="replace"))
        assert kept.text().endswith(whole[-(most - most // 4) :].decode(errors="replace"))


@given(st.text(max_size=20), st.integers(1, 40))
def test_characters_are_not_split(text: str, size: int) -> None:
    piece = text.encode()[:size]
    kept = whole_characters(piece)
    assert piece.startswith(kept)
    assert len(piece) - len(kept) < 4
    if len(piece) > 4:
        kept.decode()


MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.just("2.0") | VALUES,
        "id": VALUES,
        "method": st.sampled_from(["ping", "tools/call"]) | VALUES,
        "params": VALUES,
        "result": VALUES,
        "error": VALUES,
    },
).map(lambda message: json.dumps(message).encode())


@given(st.lists(st.binary(max_size=60) | MESSAGES, max_size=9), st.integers(1, 50))
@settings(max_examples=60, deadline=None)
def test_lines_become_messages_or_errors(lines: list[bytes], size: int) -> None:
    sent = b"".join(line + b"\n" for line in lines)

    async def work() -> tuple[int, list[dict[str, Any]]]:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            theirs.setblocking(False)
            messages = 0

            async def send() -> None:
                for at in range(0, len(sent), size):
                    await anyio.wait_writable(theirs)
                    theirs.send(sent[at : at + size])
                theirs.shutdown(socket.SHUT_WR)

            with anyio.fail_after(60):
                async with Connection(ours.fileno(), ours.fileno()).streams() as (read, write):
                    async with anyio.create_task_group() as group:
                        group.start_soon(send)
                        async for message in read:
                            assert isinstance(message, SessionMessage)
                            messages += 1
                    await write.aclose()
            ours.shutdown(socket.SHUT_WR)
            answers = b""
            while data := os.read(theirs.fileno(), 1 << 16):
                answers += data
        return messages, [json.loads(line) for line in answers.splitlines()]

    messages, answers = anyio.run(work)
    expected = sum(bool(line.strip()) for line in sent.split(b"\n")[:-1])
    assert messages + len(answers) == expected
    known = {-32700, -32600, transport.BUSY}
    assert {answer["error"]["code"] for answer in answers} <= known
