"""I12: whatever is called a shell command gets an answer, within bounds, and what is not understood is "unknown"."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.engine.safety import parse
from holdfast.engine.safety.classes import LEVELS, Safety
from holdfast.engine.safety.classify import classify, examine
from holdfast.engine.safety.programs import PROGRAMS
from holdfast.engine.safety.walk import Walker

ROOT = b"/work/tree"
TOKENS = st.sampled_from(
    [
        *[
            "(",
            ")",
            "{",
            "}",
            "[",
            "]",
            "[[",
            "]]",
            "((",
            "))",
            "$(",
            "`",
            '"',
            "'",
            "$'",
            '$"',
            "${",
            "$((",
            "<(",
            ">(",
            ";",
            ";;",
            "&",
            "&&",
            "|",
            "||",
            "|&",
            "!",
            "#",
            "\\",
            "~",
            "*",
            "?",
            "=",
            "+=",
            ":-",
            ":=",
            "@",
            ",",
            "..",
        ],
        *(["<", ">", ">>", ">|", "<&", ">&", "&>", "<<E", "<<-E", "<<'E'", "<<<", "2>&1", "0<"]),
        *(
            [
                "if",
                "then",
                "else",
                "elif",
                "fi",
                "for",
                "in",
                "do",
                "done",
                "while",
                "until",
                "case",
                "esac",
                "select",
                "function",
                "time",
                "coproc",
            ]
        ),
        *(
            [
                "rm",
                "-rf",
                "/",
                "cd",
                "..",
                "find",
                "-exec",
                "{}",
                "+",
                "sh",
                "-c",
                "eval",
                "$x",
                '"$@"',
                "$1",
                "xargs",
                "-I{}",
                "sudo",
                "git",
                "push",
                "-f",
                "sed",
                "awk",
                "env",
                "-S",
            ]
        ),
        *(
            [
                "f()",
                "x=1",
                "export",
                "unset",
                "x[1]=2",
                "\nE\n",
                "\n",
                "\t",
                "é",
                "�",
                "�",
                "\x01",
                "\x00",
                "\r",
                "'a",
                "b'",
                '"a',
                '$x"',
                "{a,b}",
                "{1..3}",
                "$((1+1))",
            ]
        ),
    ]
)
COMMANDS = (
    st.lists(TOKENS, max_size=30).map(" ".join) | st.lists(TOKENS, max_size=30).map("".join) | st.text(max_size=60)
)


def answer(command: str) -> Safety:
    # A fault would be an answer as well, but none that a test may pass with.
    safety = examine(command, cwd=ROOT, root=ROOT, env={"HOME": "/home/ann", "PATH": "/bin"})
    assert safety.level in LEVELS
    assert (safety.level == "safe") == (not safety.reasons)
    for reason in safety.reasons:
        assert 0 <= reason.start <= reason.end <= len(command)
    return safety


@given(COMMANDS)
@example("\ud800\udfff")
@example("rm é\udcff/ü")
@settings(max_examples=800, deadline=None)
def test_every_text_gets_an_answer(command: str) -> None:
    answer(command)


@given(st.sampled_from(sorted(PROGRAMS)), st.lists(TOKENS, max_size=6))
@settings(max_examples=800, deadline=None)
def test_every_program_with_any_arguments_gets_an_answer(program: str, arguments: list[str]) -> None:
    answer(" ".join([program, *arguments]))


WORDS = st.sampled_from(
    [
        "-a",
        "-c",
        "-e",
        "-f",
        "-i",
        "-n",
        "-o",
        "-r",
        "-x",
        "-R",
        "-C",
        "-I",
        "-S",
        "-X",
        "--a",
        "--output",
        "--output=",
        "--",
        "-",
        "{}",
        ";",
        "+",
        "=",
        "a=b",
        "/",
        "..",
        "x",
        "$x",
        "*",
    ]
)


@given(st.sampled_from(sorted(PROGRAMS)), st.lists(WORDS.map(lambda word: f"'{word}'") | WORDS, max_size=5))
@settings(max_examples=800, deadline=None)
def test_every_program_with_options_that_lack_their_values_gets_an_answer(program: str, words: list[str]) -> None:
    answer(" ".join([program, *words]))


@given(st.binary(max_size=300))
@settings(max_examples=500, deadline=None)
def test_bytes_that_are_no_text_get_an_answer(data: bytes) -> None:
    answer(data.decode("utf-8", "surrogateescape"))


@given(
    st.sampled_from([b"/", b"", b".", b"/a\xff", b"//a/../b", b"/work/tree/sub"]),
    st.dictionaries(st.sampled_from(["HOME", "PATH", "x", "IFS", "CDPATH"]), st.text(max_size=5), max_size=5),
)
@settings(max_examples=300, deadline=None)
def test_every_place_and_environment_gets_an_answer(cwd: bytes, env: dict[str, str]) -> None:
    for command in ("cd $x; rm -rf ~/$x *", "x=$x ls $HOME", "cd && rm -rf *"):
        assert examine(command, cwd=cwd, root=cwd or b"/", env=env).level in LEVELS


@pytest.mark.parametrize(
    "command",
    [
        "(" * 100_000,
        "(" * 60_000 + ")" * 60_000,
        "$(" * 60_000,
        '"$(' * 40_000,
        "`" * 100_000,
        "{ " * 60_000,
        "[[ " * 40_000,
        "${" * 60_000,
        "$((" * 40_000,
        "if " * 40_000,
        "case a in " * 12_000,
        "! " * 60_000,
        "a|" * 60_000,
        "a && " * 25_000,
        "<<a " * 30_000,
        "<<a\n" * 30_000,
        "cat <<" + "E" * 100_000 + "\n",
        "cat " + " ".join(f"<<E{number}" for number in range(15_000)) + "\n",
        "sh -c '" * 18_000,
        "\0" * 100_000,
        "\udcff" * 100_000,
        "x" * 1_000_000,
        "rm " + "{a,b}" * 20_000,
        "echo " + "{" * 100_000,
    ],
    ids=lambda command: command[:6].strip(),
)
def test_what_is_long_or_deep_is_unknown(command: str) -> None:
    safety = answer(command)
    assert safety.level == "unknown"
    assert not safety.reversible


@pytest.mark.parametrize("depth", [3, 30, 300, 3000])
def test_scripts_in_scripts_come_to_an_end(depth: int) -> None:
    command = "rm a"
    for _ in range(min(depth, 12)):
        command = "eval " + "'" + command.replace("'", "'\\''") + "'"
        if len(command) > parse.MAX_BYTES:
            break
    command = "f() { " + command + "; f; f; f; }; " + "f; " * depth
    answer(command)


@pytest.mark.parametrize(
    "command",
    [
        "f() { rm a$1; f b$1; f c$1; }; f",
        'f() { g "$@" x; }; g() { f "$@" y; }; f',
        "for a in 1 2 3 4 5 6 7 8; do " * 8 + "x=$a; rm $x; " + "done; " * 8,
        "while x=$x$x; do " * 12 + "rm $x; " + "done; " * 12,
        "x=aaaaaaaaaaaaaaaa; " + "x=$x$x; " * 40 + "rm $x",
    ],
)
def test_what_would_take_for_ever_to_follow_is_unknown_or_told(command: str) -> None:
    assert answer(command).level != "safe"


def test_a_fault_of_ours_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise IndexError

    monkeypatch.setattr(Walker, "tree", fail)
    safety = classify("ls é", cwd=ROOT, root=ROOT, env={})
    assert safety.level == "unknown"
    assert [(one.start, one.end) for one in safety.reasons] == [(0, 4)]
    assert "IndexError" in safety.reasons[0].text


def test_a_long_document_is_no_reason_to_give_up() -> None:
    text = 'it\'s a line with (odd) "marks" and $dollars\n' * 2_500
    assert len(text) > 100_000
    assert answer(f"cat > notes.md <<'EOF'\n{text}EOF").level == "changes"
