"""Rules for what a shell does by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.engine.safety.words import UNKNOWN
from holdfast.engine.safety.wrappers import assign, before, index

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.engine.safety.call import Call


def _cd(call: Call) -> None:
    words = call.options("L; P; e; @").operands
    texts = [word.text for word in words]
    if not texts:
        call.shell.go(call.shell.home())
    elif len(texts) > 1 or texts[0] == "-":
        call.shell.go(None)
    else:
        text = texts[0]
        # With CDPATH a name may lead elsewhere.
        elsewhere = call.shell.value("CDPATH") != UNKNOWN and text is not None and not text.startswith(("/", "."))
        call.shell.go(None if elsewhere else text)


def _pushd(call: Call) -> None:
    texts = [word.text for word in call.arguments]
    plain = len(texts) == 1 and texts[0] is not None and not texts[0].startswith(("+", "-"))
    call.shell.go(texts[0] if plain and call.program == "pushd" else None)


def _eval(call: Call) -> None:
    if any(call.walk.fetched(word.start, word.end) for word in call.arguments):
        call.note("dangerous", "runs what comes from the network as a script")
        call.shell.forget()
    elif any(word.text is None for word in call.arguments):
        call.note("unknown", "runs a text that is put together only then")
        call.shell.forget()
    elif call.arguments:
        text = " ".join(word.text or "" for word in call.arguments)
        call.walk.script(text, call.shell, (call.arguments[0].start, call.arguments[-1].end))


def _source(call: Call) -> None:
    if any(call.walk.fetched(word.start, word.end) for word in call.arguments):
        call.note("dangerous", "runs what comes from the network as a script")
    elif call.arguments:
        call.note(
            "unknown", f"runs the script {call.arguments[0].shown}, which is not looked into", at=call.arguments[0]
        )
    call.shell.forget()


def _exec(call: Call) -> None:
    call.run(call.options("c; l; a=", first=True).operands)


def _command(call: Call) -> None:
    options = call.options("p; v; V", first=True)
    if options.has("v", "V"):
        return
    shell = call.shell
    hidden, shell.functions = shell.functions, {}
    try:
        call.run(options.operands)
    finally:
        shell.functions = hidden


def _trap(call: Call) -> None:
    options = call.options("l; p")
    if options.operands and len(options.operands) > 1 and options.operands[0].text not in ("-", ""):
        call.script(options.operands[0], call.shell.copy(), "a command, when that happens")


def _assigns(call: Call) -> None:
    """``read``, ``mapfile``, ``getopts``, ``printf -v``, ``let``: give variables values that nobody knows."""
    index(call, call.arguments)
    if call.program in ("printf", "wait") and not any(word.lead.startswith(("-v", "-p")) for word in call.arguments):
        return
    for word in call.arguments:
        if call.program in ("mapfile", "readarray") and word.lead.startswith("-") and "C" in word.lead:
            call.note("unknown", "runs a command for what it reads", at=word)
        if word.text is None:
            call.shell.forget()
            return
        assigned = word.text.split("[")[0].rstrip("+-*/%&|^<>=0123456789 ")
        name = assigned.split("=")[0].strip("+-*/ ")
        if name.isidentifier():
            assign(call, call.shell, name, UNKNOWN)
    assign(call, call.shell, "REPLY", UNKNOWN)


def _test(call: Call) -> None:
    index(call, call.arguments)


def _set(call: Call) -> None:
    if any(not word.lead.startswith(("-", "+")) for word in call.arguments) or any(
        w.text == "--" for w in call.arguments
    ):
        call.shell.positional = None


def _shift(call: Call) -> None:
    call.shell.positional = None


def _alias(call: Call) -> None:
    for word in call.arguments:
        if "=" in word.shape:
            call.note("unknown", "an alias changes what later words mean", at=word)


def _renames(call: Call) -> None:
    """``hash -p``, ``enable``, ``bind``: change what names or keys mean, if they are given anything."""
    if call.arguments and not all(word.text in ("-r", "-l", "-a", "-P", "-p") for word in call.arguments):
        call.note("unknown", "may change what the names of programs mean")


def _history(call: Call) -> None:
    options = call.options("c; d=; a; n; r; w; p; s")
    if options.has("c", "d", "w", "a"):
        call.note("risky", "changes the history of the shell: outside of the workspace")


def _fc(call: Call) -> None:
    if not call.options("l; n; r; e=; s").has("l"):
        call.note("unknown", "runs a command from the history")


def _complete(call: Call) -> None:
    if call.options("C=; F=; W=; G=; A=").has("C", "F"):
        call.note("unknown", "runs a command")


def _kill(call: Call) -> None:
    texts = [word.text or "" for word in call.arguments]
    if not texts or texts[0] in ("-l", "-L", "-0") or texts[:2] in (["-s", "0"], ["-n", "0"]):
        return
    if texts[0] in ("-s", "-n"):
        goals = texts[2:]
    else:
        goals = texts[1:] if texts[0].startswith("-") else texts
    if "-1" in goals:
        call.note("dangerous", "ends every process that it may end")
    elif "1" in goals or "0" in goals:
        call.note("dangerous", "ends the first process, or all of the group")
    else:
        call.note("risky", "ends processes, which no checkpoint brings back")


def _nothing(_call: Call) -> None:
    """Reads, or changes only the shell itself."""


BUILTINS: Mapping[str, Callable[[Call], None]] = {
    **dict.fromkeys(
        (
            ":", "true", "false", "echo", "pwd", "type", "exit", "return", "break", "continue", "jobs",
            "fg", "bg", "disown", "ulimit", "umask", "times", "shopt", "dirs", "caller", "suspend", "unalias", "logout",
            "help",
        ),
        _nothing,
    ),
    **dict.fromkeys(("test", "["), _test),
    **dict.fromkeys(("read", "mapfile", "readarray", "getopts", "let", "printf", "wait"), _assigns),
    **dict.fromkeys(("enable", "hash", "bind"), _renames),
    **dict.fromkeys(("complete", "compgen", "compopt"), _complete),
    "cd": _cd, "pushd": _pushd, "popd": _pushd, "eval": _eval, "source": _source, ".": _source, "exec": _exec,
    "command": _command, "builtin": _command, "trap": _trap, "set": _set, "shift": _shift, "alias": _alias,
    "history": _history, "fc": _fc, "kill": _kill, "time": before("p"),
}  # fmt: skip
