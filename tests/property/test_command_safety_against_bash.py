"""What bash really runs of a command was foreseen, with these arguments, or said to be unknown; on generated commands.

The programs are called ``alpha``, ``beta`` and ``gamma``, and only write down how they were called. Nothing else is on
the path, and no command that is generated names a file outside of the test's directory.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from holdfast.engine.safety.classes import combine
from holdfast.engine.safety.parse import CannotParseError, Texts, encode
from holdfast.engine.safety.shell import Shell
from holdfast.engine.safety.walk import Walker
from holdfast.engine.safety.words import SET

from ..sampling import examples

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from holdfast.engine.safety.words import Word

BASH = shutil.which("bash")
pytestmark = pytest.mark.skipif(BASH is None, reason="needs bash, the oracle")

NAMES = ("alpha", "beta", "gamma")
STUB = """#!{bash}
IFS=$'\\037'
printf '%s\\036' "${{0##*/}}"$'\\037'"$*" >> {log}
echo out
"""

PIECES = st.sampled_from(
    [
        *[
            "a",
            "b",
            "one",
            "x=y",
            "-r",
            "-rf",
            "--",
            "-",
            "#",
            "a#b",
            "~",
            ".",
            "..",
            "{a,b}",
            "{1..3}",
            "{a,{b,c}}",
            "a{,b}",
            "{a}",
            "}",
            "{",
            "*",
            "a*",
            "?",
            "[a]",
            "!",
            "=",
            "+",
            "@",
            "%",
        ],
        *[
            "'a b'",
            "''",
            '""',
            '"a',
            'b"',
            "'it'\\''s'",
            "\\\\",
            "\\a",
            "\\$x",
            "\\",
            "",
            "$'a\\tb'",
            "$'\\x61\\''",
            "$'\\101'",
            '"\\$x"',
            '"\\\\"',
            '"\\a"',
        ],
        *[
            "$x",
            '"$x"',
            "${x}",
            '"${x}"',
            "$y",
            '"$y"',
            "$z",
            '"a$x"',
            "$x$x",
            "a$x",
            '"$x',
            '$y"',
            "$1",
            '"$1"',
            '"$@"',
            "$@",
            "$#",
            "$?",
            "${x:-d}",
            '"${z:-d e}"',
        ],
        *[
            "$(alpha",
            "s)",
            '"$(beta',
            's)"',
            "`gamma",
            "s`",
            '"a',
            "`alpha",
            's`"',
            "$((1+1))",
            '"$((2*3))"',
            "${#x}",
            '"${x%a}"',
            "$(echo)",
        ],
        *(["é", "ü\xa0", "a\u3000b", "\r", "\x0c", "\x0b#", "a\r#"]),
        '"$(echo "$(beta "in $x")")"',
        '$(echo `alpha "q"`)',
        '"  $x  "',
        '" `beta "p"` "',
        "`echo \\`gamma n\\``",
    ]
)
WORD = PIECES | st.lists(PIECES, min_size=2, max_size=3).map("".join)
WORDS = st.lists(WORD, max_size=3).map(" ".join)
SIMPLE = st.one_of(
    st.tuples(st.sampled_from(NAMES), WORDS).map(" ".join),
    st.tuples(st.sampled_from(["x", "y"]), WORD).map("=".join),
    st.tuples(st.sampled_from(["x", "y"]), WORD, st.sampled_from(NAMES), WORDS).map(
        lambda one: "{}={} {} {}".format(*one)
    ),
    st.tuples(
        st.sampled_from(
            [
                "f",
                "f a",
                "eval alpha",
                "command beta",
                "echo",
                "export x=q",
                "set --",
                "unset x",
                "true",
                "false",
                "shift",
                "local x=1",
                "read x",
                "eval 'x=t; beta'",
                "! alpha",
                "time beta",
            ]
        ),
        WORDS,
    ).map(" ".join),
    st.tuples(st.sampled_from(NAMES), WORDS, WORDS).map(lambda one: "{} {} > file {}".format(*one)),
    st.tuples(st.sampled_from(NAMES), WORDS, WORDS).map(lambda one: "{} <<EOF {}\n$x {}\nEOF\n".format(*one)),
    st.tuples(st.sampled_from(NAMES), WORDS).map(lambda one: "{} <<'EOF'\n{}\nEOF\n".format(*one)),
    st.tuples(st.sampled_from(NAMES), st.sampled_from(["$x", "'a b'", '"$y z"', "b"])).map(
        lambda one: "{} <<< {}".format(*one)
    ),
    st.just("$x $y"),
    st.just('"$y" a'),
    st.just("${x} a"),
    st.just("\\alpha b"),
    st.just("al''pha b"),
    st.just('"gam"ma b'),
)


def _compound(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    two = st.tuples(inner, inner)
    return st.one_of(
        st.tuples(inner, st.sampled_from(["; ", " && ", " || ", " | ", "\n", " |& "]), inner).map("".join),
        inner.map("( {} )".format),
        inner.map("{{ {}\n}}".format),
        two.map(lambda one: "if {}\nthen {}\nfi".format(*one)),
        st.tuples(inner, inner, inner).map(lambda one: "if {}\nthen {}\nelse {}\nfi".format(*one)),
        st.tuples(WORDS, inner).map(lambda one: "for x in {}\ndo {}\ndone".format(*one)),
        st.tuples(WORD, inner, inner).map(lambda one: "case {} in a*) {}\n;; *) {}\n;; esac".format(*one)),
        inner.map(lambda one: "g() { " + one + "\n}; g 1 '2 3'"),
        inner.map("alpha <({})".format),
        inner.map('beta "$( {}\n)"'.format),
        inner.map("{} # comment".format),
    )


COMMANDS = st.recursive(SIMPLE, _compound, max_leaves=5)
START = 'f() { beta "$@" "f$1"\n}\n'


class Recorder(Walker):
    """Writes down the words of every program that is looked into."""

    def __init__(self, texts: Texts) -> None:
        super().__init__(texts, dict.fromkeys(NAMES, "changes"))
        self.seen: list[list[Word]] = []

    def invoke(self, words: Sequence[Word], shell: Shell, span: tuple[int, int]) -> None:
        self.seen.append(list(words))
        super().invoke(words, shell, span)


def foreseen(command: str, cwd: str, env: dict[str, str]) -> tuple[str, list[re.Pattern[str]]]:
    texts = Texts(encode(command))
    walker = Recorder(texts)
    try:
        walker.tree(texts.first, Shell(cwd, cwd, env))
    except CannotParseError:
        return "unknown", []
    patterns = [
        re.compile(
            "\037".join(_pattern(word) for word in words).replace("\037<many>", "<many>").replace("<many>", ".*"),
            re.DOTALL,
        )
        for words in walker.seen
        if words[0].text in NAMES
    ]
    return combine(walker.reasons).level, patterns


def _pattern(word: Word) -> str:
    if word.many:
        return "<many>"
    return "".join(".*" if one <= SET else re.escape(one) for one in word.shape)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("oracle")
    (folder / "bin").mkdir()
    (folder / "in").mkdir()
    for name in NAMES:
        stub = folder / "bin" / name
        stub.write_text(STUB.format(bash=BASH, log=folder / "log"))
        stub.chmod(0o755)
    return folder


@given(COMMANDS)
@example('export x=q "$(echo "$(beta "in $x")")"')
@example("alpha $y{a,b}")
@example("alpha {a,$y}b")
@example('f() { alpha "$@" a; }; f; f $x')
@example('alpha "b${@:1}"')
@example("alpha } }")
@example('alpha <<EOF \n$x " `beta "p"` "\nEOF\n')
@example("alpha <<EOF \na `beta` b\nEOF\n")
@example("beta <(alpha) <(alpha b)")
@settings(
    max_examples=examples(300, 100),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_what_bash_runs_was_foreseen(place: Path, command: str) -> None:
    command = START + command
    log, inside = place / "log", place / "in"
    shutil.rmtree(inside)
    inside.mkdir()
    log.write_bytes(b"")
    env = {"PATH": str(place / "bin"), "HOME": str(inside), "x": "v", "y": "a b", "LC_ALL": "C.UTF-8"}
    assert BASH is not None
    script = command.encode("utf-8", "surrogateescape")
    subprocess.run(
        [BASH, "--norc", "--noprofile", "-c", script],
        env={**env, "FUNCNEST": "20"},  # (a function may be generated that calls itself for ever)
        cwd=inside,
        timeout=20,
        check=False,
        capture_output=True,
        stdin=subprocess.DEVNULL,
    )
    ran = [one for one in log.read_bytes().decode("utf-8", "surrogateescape").split("\036") if one]
    level, patterns = foreseen(command, str(inside), env)
    if level == "unknown":
        return
    for line in ran:
        line = line.removesuffix("\037") if line.count("\037") == 1 and line.endswith("\037") else line
        line = re.sub(r"/dev/fd/\d+", "/dev/fd/63", line)  # (the second of them has another number)
        # A program without arguments, or with one that is empty, is written down alike.
        assert any(one.fullmatch(line) or one.fullmatch(line + "\037") for one in patterns), (command, line, patterns)


def test_the_oracle_is_what_it_says(place: Path) -> None:
    """The stubs are what runs, and they are written down with their arguments."""
    assert BASH is not None
    (place / "log").write_bytes(b"")
    env = {"PATH": str(place / "bin")}
    subprocess.run([BASH, "--norc", "-c", "alpha 'a b' c; beta"], env=env, cwd=place / "in", check=True, timeout=20)
    assert (place / "log").read_bytes() == b"alpha\x1fa b\x1fc\x1ebeta\x1f\x1e"
    assert sorted(os.listdir(place / "bin")) == sorted(NAMES), sys.platform
