"""One table in a text of TOML, between marks."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine.integrations import _toml_block as toml_block
from holdfast.model.errors import FormatError, RefusedError

PATH = ("mcp_servers", "holdfast")
VALUE = {"command": '/a "quoted" \\ path', "args": ["mcp", "ü\x7f"]}

TEXTS = {
    "nothing": "",
    "keys": 'model = "x" # mine\n',
    "no line feed at the end": "[a]\nb = 1",
    "other servers": '[mcp_servers.other]\ncommand = "x"\n\n[mcp_servers.other.env]\nA = "1"\n',
    "arrays of tables": "[[hooks.Stop]]\n[[hooks.Stop.hooks]]\ntype = 'command'\n",
    "carriage returns": "a = 1\r\n\r\n[b]\r\nc = 2\r\n",
    "dotted": "mcp_servers.other.command = 'x'\n[z]\n",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_what_is_put_in_and_taken_out_again_leaves_the_rest(text: str) -> None:
    added = toml_block.put(text, PATH, VALUE)
    assert added.startswith(text)
    assert tomllib.loads(added)["mcp_servers"]["holdfast"] == VALUE
    assert toml_block.holds(added, PATH)
    assert toml_block.put(added, PATH, VALUE) == added
    newline = "\r\n" if "\r\n" in text else "\n"
    ended = text + newline if text and not text.endswith(newline) else text
    assert toml_block.delete(added, PATH) == ended
    assert "\n" not in added.replace("\r\n", "") or "\r\n" not in text


def test_what_the_user_has_added_to_it_stays() -> None:
    added = toml_block.put("", PATH, {"command": "old", "args": ["mcp"]})
    own = (
        added.replace('args = ["mcp"]\n', 'args = ["mcp"]\nenabled = false\nenv = { A = "1" }\n') + "\n[after]\nx = 1\n"
    )
    changed = toml_block.put(own, PATH, {"command": "new", "args": ["mcp"]})
    table = {"command": "new", "args": ["mcp"], "enabled": False, "env": {"A": "1"}}
    assert tomllib.loads(changed) == {"mcp_servers": {"holdfast": table}, "after": {"x": 1}}
    assert toml_block.delete(changed, PATH) == "\n[after]\nx = 1\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('[mcp_servers.holdfast]\ncommand = "mine"\n', "was not written by Holdfast"),
        ("mcp_servers = { other = { command = 'x' } }\n", "cannot be added at its end"),
        (toml_block.BEGIN + "\n", "marks"),
        (f"{toml_block.END}\n{toml_block.BEGIN}\n", "marks"),
        (f"{toml_block.BEGIN}\n{toml_block.END}\n", "holds other lines too"),
        (f"{toml_block.BEGIN}\n[mcp_servers.holdfast]\n[other]\nx = 1\n{toml_block.END}\n", "holds other lines too"),
        (f'x = """\n{toml_block.BEGIN}\n{toml_block.END}\n"""\n', "holds other lines too"),
        ("mcp_servers = 1\n", "mcp_servers is not a table"),
        ("[[mcp_servers]]\n", "mcp_servers is not a table"),
        (f"{toml_block.BEGIN}\nmcp_servers = 1\n{toml_block.END}\n", "holds other lines too"),
        ("[mcp_servers]\nholdfast = 1\n", "cannot be added at its end"),
    ],
)
def test_what_cannot_be_done_without_harm_is_refused(text: str, reason: str) -> None:
    with pytest.raises(RefusedError, match=reason):
        toml_block.put(text, PATH, VALUE)


def test_what_is_malformed_is_refused() -> None:
    for work in (lambda: toml_block.put("a = \n", PATH, VALUE), lambda: toml_block.delete("a = \n", PATH)):
        with pytest.raises(FormatError, match="line 1"):
            work()


@given(st.text(), st.lists(st.text()))
def test_any_string_is_written_so_that_it_is_read(command: str, arguments: list[str]) -> None:
    value = {"command": command, "args": arguments}
    assert tomllib.loads(toml_block.put("", PATH, value)) == {"mcp_servers": {"holdfast": value}}
