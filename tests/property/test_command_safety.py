"""What holds of the safety of commands whatever they are."""

from __future__ import annotations

import shlex

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.engine.safety.classes import LEVELS, RANK, Safety
from holdfast.engine.safety.classify import examine

from ..sampling import examples

ROOT = b"/home/ann/project"
ENV = {"HOME": "/home/ann", "PATH": "/bin"}

PROGRAMS = st.sampled_from(
    [
        "ls",
        "rm",
        "rm -rf",
        "rm -r",
        "cp",
        "mv",
        "git",
        "git push",
        "git clean",
        "find",
        "chmod -R 777",
        "sudo",
        "sed -i",
        "tee",
        "echo",
        "npm",
        "curl",
        "xargs rm",
        "env",
        "sh -c",
        "eval",
        "dd",
        "kill",
        "tar xf",
        "frobnicate",
        "cd",
        "make",
        "touch",
    ]
)
ARGUMENTS = st.sampled_from(
    [
        "/",
        "~",
        "a",
        "src",
        "..",
        "../x",
        ".git",
        "node_modules",
        "/etc/passwd",
        "/tmp/x",
        "-f",
        "--force",
        "-x",
        "*",
        "$x",
        '"$x"',
        "of=/dev/sda",
        "'rm a'",
        "-delete",
        "status",
        "install",
        "-9",
        "-1",
        "https://example.org",
        "> b",
        "2>&1",
        "< a",
    ]
)
SIMPLE = st.tuples(PROGRAMS, st.lists(ARGUMENTS, max_size=4)).map(lambda one: " ".join([one[0], *one[1]]))
LITERAL = st.sampled_from(
    [
        "/",
        "a",
        "src",
        "..",
        ".git",
        "node_modules",
        "/etc/passwd",
        "/tmp/x",
        "-f",
        "--force",
        "-x",
        "-rf",
        "of=/dev/sda",
        "-delete",
        "status",
        "install",
        "push",
        "rm",
        "ls",
        "-r",
        "clean",
        "-c",
        "a=b",
        "{}",
        ";",
        "a b",
        "#",
        "\\",
        "*",
        "$x",
        "ü",
    ]
)


def of(command: str) -> Safety:
    return examine(command, cwd=ROOT, root=ROOT, env=ENV)


def rank(command: str) -> int:
    return RANK[of(command).level]


@given(SIMPLE, SIMPLE, st.sampled_from(["; ", "\n", " & ", " && ", " || ", " | "]))
@settings(max_examples=examples(300, 100), deadline=None)
def test_a_whole_is_as_high_as_its_parts(one: str, other: str, joint: str) -> None:
    whole = f"{one}{joint}{other}"
    assert rank(whole) >= rank(one), whole
    # Before the second, the first may have gone elsewhere; but then it may as well have stayed.
    if not (one.startswith("cd") and joint == " && "):
        assert rank(whole) >= rank(other), whole
    if not of(one).reversible:
        assert not of(whole).reversible


WRAPPED = [
    "( {} )",
    "{{ {}\n}}",
    "if true; then {}\nfi",
    "if true; then :; else {}\nfi",
    "while true; do {}\ndone",
    "for i in 1 2; do {}\ndone",
    "case x in y) {}\n;; esac",
    "{{ f() {{ {}\n}}; f\n}}",
    "echo $( {}\n)",
    'echo "$( {}\n)"',
    "cat <( {}\n)",
    "x=$( {}\n)",
    "! {}",
    "true | {}",
    "{} # and a comment",
    "true && {}",
    "cat <<EOF\n$( {}\n)\nEOF",
]


@given(SIMPLE, st.sampled_from(WRAPPED), st.sampled_from(WRAPPED))
@settings(max_examples=examples(300, 100), deadline=None)
def test_what_stands_within_something_is_found(command: str, inner: str, outer: str) -> None:
    assert rank(outer.format(inner.format(command))) >= rank(command)


@given(
    SIMPLE,
    st.sampled_from(["sh -c {}", "bash -lc {}", "eval {}", "trap {} EXIT", "env -S {}", "echo {} | sh", "bash <<< {}"]),
)
@settings(max_examples=examples(300, 100), deadline=None)
def test_what_stands_in_quotes_and_is_run_is_found(command: str, wrapper: str) -> None:
    assert rank(wrapper.format(shlex.quote(command))) >= rank(command)


@given(
    SIMPLE,
    st.sampled_from(
        ["nohup", "time", "nice -n 5", "timeout 5", "env A=b", "env -i", "command", "stdbuf -o0", "setsid", "exec"]
    ),
)
@settings(max_examples=examples(300, 100), deadline=None)
def test_what_is_run_by_another_program_is_found(command: str, wrapper: str) -> None:
    if not command.startswith(("cd", "eval")):
        assert of(f"{wrapper} {command}").level == of(command).level


def single(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


def double(word: str) -> str:
    return '"' + "".join("\\" + one if one in '$`"\\' else one for one in word) + '"'


def escaped(word: str) -> str:
    return "".join("\\" + one for one in word)


def ansi(word: str) -> str:
    return "$'" + "".join(f"\\x{ord(one):02x}" if ord(one) < 128 else one for one in word) + "'"


def halves(word: str) -> str:
    middle = len(word) // 2
    return single(word[:middle]) + double(word[middle:])


QUOTES = [single, double, escaped, ansi, halves, shlex.quote]


@given(
    st.sampled_from(["rm", "ls", "git", "find", "sudo", "cp", "dd", "echo", "frobnicate", "cd", "tee", "env"]),
    st.lists(LITERAL, max_size=4),
    st.data(),
)
@settings(max_examples=examples(300, 100), deadline=None)
def test_quotes_that_mean_the_same_are_the_same(program: str, arguments: list[str], data: st.DataObject) -> None:
    words = [program, *arguments]
    plain = of(" ".join(shlex.quote(word) for word in words))
    quoted = " ".join(data.draw(st.sampled_from(QUOTES))(word) for word in words)
    other = of(quoted)
    assert (other.level, other.reversible) == (plain.level, plain.reversible), quoted
    assert [reason.text for reason in other.reasons] == [reason.text for reason in plain.reasons]


@given(st.text(st.characters(codec="utf-8", exclude_characters="\n\0\1\2\3"), max_size=60))
@settings(max_examples=examples(400, 100), deadline=None)
def test_a_comment_is_safe(text: str) -> None:
    assert of(f"# {text}") == Safety("safe", True, ())
    assert of(f"ls # {text}\n") == Safety("safe", True, ())


@given(st.text(st.characters(codec="utf-8", exclude_characters="'\n\0\1\2\3"), max_size=60))
@settings(max_examples=examples(400, 100), deadline=None)
def test_a_text_in_quotes_is_only_said(text: str) -> None:
    assert of(f"echo '{text}'") == Safety("safe", True, ())


@given(
    st.text(st.characters(codec="utf-8", exclude_characters="\0\1\2\3\\"), max_size=200).filter(
        lambda text: "END" not in text
    )
)
@settings(max_examples=examples(400, 100), deadline=None)
def test_a_document_is_only_written(text: str) -> None:
    safety = of(f"cat > notes <<'END'\n{text}\nEND\n")
    assert [reason.text for reason in safety.reasons] == ["writes notes"]


@given(SIMPLE, st.text("aäü€😀 ", max_size=8))
@settings(max_examples=examples(300, 100), deadline=None)
def test_reasons_say_where_in_characters(command: str, before: str) -> None:
    shift = len(f"echo '{before}'; ")
    plain, moved = of(command), of(f"echo '{before}'; {command}")
    assert [(one.text, one.start + shift, one.end + shift) for one in plain.reasons] == [
        (one.text, one.start, one.end) for one in moved.reasons
    ]


def test_levels_have_an_order() -> None:
    assert sorted(LEVELS, key=RANK.__getitem__) == ["safe", "changes", "risky", "unknown", "dangerous"]
