"""I12: any text gets a level, within bounds, and never "safe" where a shell would expand, substitute or run more."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.engine.safety._program_table import rows, wrappers
from holdfast.engine.safety.classify import examine
from holdfast.model.session_types import LEVELS, Level

ROOT = b"/work/tree"
TOKENS = st.sampled_from(
    [
        *r"""
    ( ) { } [ ] [[ ]] (( )) $( ` " ' $' $" ${ $(( <( >( ; ;; & && | || |& ! # \ ~ * ? = += :- , .. < > >> >| <& >& &>
    <<E <<-E <<'E' <<< 2>&1 0< if then else fi for in do done while case esac function time rm -rf / cd .. find -exec {}
    + sh -c $x "$@" $1 xargs -I{} sudo git push -f sed -i awk env -S f() x=1 export LC_ALL=C x[1]=2 é 'a b' "a b" {a,b}
    ls cat echo status -o --output /dev/null nice -n
    """.split(),  # noqa: SIM905 - a list of these is three times as long
        *("\n", "\nE\n", "\t", "\x01", "\x00", "\r", "\\\n", "\xa0", "\udcff"),
    ]
)
COMMANDS = (
    st.lists(TOKENS, max_size=30).map(" ".join) | st.lists(TOKENS, max_size=30).map("".join) | st.text(max_size=60)
)
PROGRAMS = st.sampled_from(sorted({" ".join(key) for key in rows()} | wrappers().keys() | {"sh -c", "cd", "bash -c"}))
HARMLESS = st.sampled_from(["ls", "ls -l", "cat a", "echo 'x'", "git status", "pwd"])


def level(command: str) -> Level:
    # A fault would be an answer as well, but none that a test may pass with.
    found = examine(command, cwd=ROOT, root=ROOT, env={"HOME": "/home/ann", "PATH": "/bin"})
    assert found in LEVELS
    return found


@given(COMMANDS)
@example("\ud800\udfff")
@example("rm é\udcff/ü")
@settings(max_examples=800, deadline=None)
def test_every_text_gets_a_level(command: str) -> None:
    level(command)


@given(PROGRAMS, st.lists(TOKENS, max_size=6))
@settings(max_examples=800, deadline=None)
def test_every_program_with_any_arguments_gets_a_level(program: str, arguments: list[str]) -> None:
    level(" ".join([program, *arguments]))


@given(st.binary(max_size=300))
@settings(max_examples=500, deadline=None)
def test_bytes_that_are_no_text_get_a_level(data: bytes) -> None:
    level(data.decode("utf-8", "surrogateescape"))


@given(
    PROGRAMS,
    st.lists(st.sampled_from(["-a", "--b", "c", "'d e'", "LC_ALL=C", "--"]), max_size=3),
    st.sampled_from(["$x", '"$x"', "${x:-y}", "$(rm a)", '"$(rm a)"', "`rm a`", "$((1))", "<(rm a)", "*", "{a,b}"]),
    st.sampled_from(["{} {}", "{}{}", "{} a{}", "ls; {} {}", "{} {} | cat", "{} < {}", "{}\n{}"]),
)
@settings(max_examples=800, deadline=None)
def test_what_a_shell_expands_is_never_safe(program: str, words: list[str], expansion: str, form: str) -> None:
    assert level(form.format(" ".join([program, *words]), expansion)) != "safe"


@given(
    HARMLESS,
    HARMLESS,
    st.sampled_from(["; ", "\n", " && ", " || ", " | "]),
    st.sampled_from(["frobnicate", "./ls", "sh"]),
)
@settings(max_examples=300, deadline=None)
def test_a_program_that_is_not_known_is_never_safe(one: str, other: str, joint: str, program: str) -> None:
    assert level(f"{one}{joint}{other}") == "safe"
    assert level(f"{one}{joint}{program} {other}") == "unknown"
    assert level(f"{program} a{joint}{other}") == "unknown"


@given(HARMLESS, st.text(st.characters(codec="utf-8", exclude_characters="'\0"), max_size=60))
@settings(max_examples=300, deadline=None)
def test_what_stands_in_quotes_is_only_a_word(command: str, text: str) -> None:
    # (A program that looks at its operands is not among these.)
    assert level(f"echo '{text}'; {command}") == "safe"
    assert level(f"touch 'a{text.replace('/', '')}' && {command}") == "changes"


@pytest.mark.parametrize(
    "command",
    [
        *(
            one * 40_000
            for one in ("(", "$(", '"$(', "`", "{ ", "[[ ", "${", "if ", "! ", "a|", "<<a ", "<<a\n", "\0", "\udcff")
        ),
        *(one * 12_000 for one in ("case a in ", "a && ", "sh -c '", "nice ", "env LC_ALL=C ", "ls {a,b} ")),
        "frobnicate && " * 9_000 + "ls",
        "cat <<" + "E" * 100_000 + "\n",
        "cat " + " ".join(f"<<E{number}" for number in range(15_000)) + "\n",
        "x" * 1_000_000,
    ],
    ids=lambda command: command[:6].strip(),
)
def test_what_is_long_or_deep_is_unknown(command: str) -> None:
    assert level(command) == "unknown"


def test_scripts_in_scripts_come_to_an_end() -> None:
    command = "ls"
    for _ in range(12):
        command = "sh -c '" + command.replace("'", "'\\''") + "'"
    assert level(command) == "unknown"
