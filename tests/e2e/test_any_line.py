"""Whatever the command line, there is an exit code and no traceback; with --json, standard output is JSON or empty."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.cli import command_table
from holdfast.cli.main import main

if TYPE_CHECKING:
    import pytest

    from e2e.conftest import Cli

# Not watch and serve, which would stay; init and fork make what they are told to wherever that is; run runs it.
COMMANDS = [name for name in command_table.names() if name not in ("watch", "serve", "init", "fork", "export", "run")]
WORDS = st.one_of(
    st.sampled_from(
        ["--json", "-q", "-v", "--", "-n", "1", "0", "-1", "@", "@-", "@-9", "..", "@..@-", "one", "f", ".", ":"]
    ),
    st.sampled_from(
        ["@:f", "one:f", "@:", "--stat", "--all", "--graph", "--dry-run", "--keep-last", "--keep-within", "7d"]
    ),
    st.sampled_from(
        ["--abort", "--continue", "--read-data", "--grace", "-m", "--label=x", "bash", "..", "/", "../..", ""]
    ),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=5),  # no word has a NUL
    st.binary(max_size=4).map(lambda raw: raw.replace(b"\0", b"").decode("utf-8", "surrogateescape")),
)


def test_any_command_line_ends_with_a_code(cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    cli.write("f", "1")
    cli("checkpoint", "-m", "one")

    @settings(max_examples=150, deadline=None)
    @given(st.sampled_from(COMMANDS), st.lists(WORDS, max_size=4))
    def check(command: str, words: list[str]) -> None:
        capsys.readouterr()
        code = main([command, *words])
        out, err = capsys.readouterr()
        assert code in range(6)
        assert "Traceback" not in err
        assert "this is a bug" not in err
        assert bool(err.strip()) or code == 0 or (command == "experiment" and "No attempt succeeded" in out)
        before_dashes = words[: words.index("--")] if "--" in words else words
        if "--json" in before_dashes and not {"-h", "--help"} & set(words):
            assert out == "" or (json.loads(out) is not None and out.count("\n") == 1)
        assert not any(ord(character) < 32 and character not in "\n\t" for character in out + err)

    check()
