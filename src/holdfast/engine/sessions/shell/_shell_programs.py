"""The shells that run a session's commands, and the scripts that make each report its state at its end.

Each command has a shell of its own: ``SHELL -c SCRIPT``, where the script sets up the report and then evaluates the
command, all on its first line, so that line numbers in messages are the command's. The report is set up by:

- a trap on EXIT, which is also run after ``exit``, a failure under ``set -e``, and (in bash) a signal.
- if the command contains ``trap``, it may set its own: then ``exit``, the end of the script, and (in bash and zsh, by
  a trap on errors) a failure under ``set -e`` report too.
- if it contains ``exec``, that reports before the shell is replaced. ``exec`` and ``exit`` are then aliases, which
  expand to themselves and an empty substitution: redirections, conditions and ``$?`` stay unchanged.
- sh and zsh die of signals without a report: they have traps for the signals that ask a process to end.

A killed shell (SIGKILL) reports nothing, so the next one gets the former state.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from holdfast.model.errors import UnsupportedError, UsageError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.log import Log
from holdfast.model.paths import display, under

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.model.session_types import ShellName


_LOG = Log(__name__)

MAGIC = "holdfast-shell-1"
END = "end"
TOO_LONG = "__holdfast_too_long"
"""An artificial variable of the shell: its value names one that cannot be passed on."""

OWN = frozenset(
    (
        "_",
        "PWD",
        "SHLVL",
        "HOLDFAST_SESSION",
        "HOLDFAST_AGENT",
        "HOLDFAST_RUN",
        "PS0",
        "PS1",
        "PS2",
        "PROMPT_COMMAND",
        "HISTCONTROL",
        "HISTIGNORE",
    )
)
"""Variables of the shell itself: they name its directory and its caller, are removed by a non-interactive shell, or
belong to the hooks of an interactive one. They are never carried over.
"""

_MOST_BYTES = 16 << 20


class ShellState(NamedTuple):
    """The state that one shell leaves for the next: its directory, and the variables that it exported.

    The shell writes it to a file at its end, in NUL-terminated fields: a magic, ``$PWD``, the physical directory with a
    line break (empty if it was deleted), the environment of its children, and a final word that proves completeness. Of
    variables that are too long for an environment it writes only the names.
    """

    cwd: bytes
    """An absolute path, in the shell's form (links in it are not resolved). It may have been deleted."""
    env: Mapping[str, str]
    """All exported variables except `OWN`; bytes that are not UTF-8 as in `os.fsdecode`."""
    too_long: tuple[str, ...] = ()
    """Names of exported variables that are too long to start a program with."""


def read_state(path: bytes, undo_log: bytes = b"") -> ShellState | None:
    """The state that a shell has written to the file ``path``; None if it is missing or incomplete. If the size of its
    exports is the reason, that is logged. A directory in the ``undo_log``, if there is one, is a removed one.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST_BYTES)
    except FileNotFoundError:
        return None
    carried = parse_state(data)
    if carried is None and f"\0{TOO_LONG}=".encode() in data:
        _LOG.warning(
            "the exported variables are too large to start a program with: the session "
            "keeps its previous directory and variables"
        )
    if carried is not None and undo_log and under(carried.cwd, undo_log):
        return carried._replace(cwd=_directory(data.split(b"\0", 2)[1], b"") or carried.cwd)
    return carried


def parse_state(data: bytes) -> ShellState | None:
    """See `read_state`. Any bytes may be given."""
    fields = data.split(b"\0")
    if len(fields) < 5 or fields[0] != MAGIC.encode() or fields[-2:] != [END.encode(), b""]:
        return None
    logical, physical, variables = fields[1], fields[2].removesuffix(b"\n"), fields[3:-2]
    directory = _directory(logical, physical)
    if directory is None:
        return None
    env: dict[str, str] = {}
    too_long: list[str] = []
    for variable in variables:
        name, equals, value = variable.partition(b"=")
        if name == TOO_LONG.encode():
            too_long += [os.fsdecode(value)] if value else []
        elif name and equals and os.fsdecode(name) not in OWN and not name.startswith(b"__holdfast"):
            env[os.fsdecode(name)] = os.fsdecode(value)
    return ShellState(directory, env, tuple(too_long))


def _directory(logical: bytes, physical: bytes) -> bytes | None:
    """The shell's own form of the path, unless that now leads to another directory."""
    if not logical.startswith(b"/"):
        return physical or None
    if not physical:
        return logical  # it is gone
    try:
        same = os.path.samestat(os.stat(logical), os.stat(physical))
    except OSError:
        same = False
    return logical if same else physical


def relative(directory: bytes, root: bytes) -> str:
    """``directory`` in the form of a session's state: relative to ``root`` (``.`` is the root), or absolute if it is
    outside.

    A path through links from outside counts as inside.
    """
    normal, root = os.path.normpath(directory), root.rstrip(b"/")
    if not under(normal, root):
        real = os.path.realpath(normal)
        if under(real, os.path.realpath(root)):
            normal, root = real, os.path.realpath(root)
        else:
            return os.fsdecode(normal)
    return os.fsdecode(normal[len(root) :].lstrip(b"/")) or "."


def nearest_existing(directory: bytes, root: bytes) -> bytes:
    """``directory``, or if it is gone, or it may not be entered, the nearest above it; ``root``, if even that lies
    outside of it.
    """
    at = directory
    while not (os.path.isdir(at) and os.access(at, os.X_OK)):
        at = os.path.dirname(at) if under(at, root) and at != root else root
        if at == root:
            break
    if at != directory:
        _LOG.warning("%s is gone: the command begins in %s", display(directory), display(at))
    return at


_PLACES = (b"/bin", b"/usr/bin", b"/usr/local/bin", b"/run/current-system/sw/bin")
_LONGEST_ARGUMENT = 100_000
"""Bytes: the kernel takes no argument above 128 KiB."""

_PAGES = 32
"""Of memory: no variable with its name may be longer where a program is started (``MAX_ARG_STRLEN``, execve(2))."""

_HELD_BACK = ("BASH_ENV", "SHELLOPTS", "BASHOPTS")
"""Variables that bash would obey before it reads the script; the script sets them instead."""

_ENDING = (b"HUP", b"INT", b"TERM")
_ARMS = {
    "bash": ["--noprofile", "--norc", "-c"],
    "sh": ["-c"],
    "zsh": ["-f", "-c"],
}


class ShellStart(NamedTuple):
    """How to start a shell with a command."""

    arguments: list[bytes]
    environment: dict[bytes, bytes]


def find_shell(shell: ShellName, path: str | None = None) -> bytes:
    """The program of a shell: where systems have it, else by ``path`` (as ``$PATH``). Raises `UnsupportedError`."""
    name = shell.encode()
    places = [*_PLACES, *(os.fsencode(place) for place in (path or "").split(":") if place.startswith("/"))]
    for place in places:
        program = place + b"/" + name
        if os.access(program, os.X_OK):
            return program
    raise UnsupportedError(
        f"there is no {shell} here", hint="install it, or begin a session with another shell (--shell)"
    )


def prepare_start(
    shell: ShellName, command: str, environment: Mapping[str, str], *, folder: bytes, said: bytes
) -> ShellStart:
    """The start of a shell that runs ``command`` and writes its state to the file ``said`` at its end.

    ``folder`` is a private directory, which must exist while it runs. Raises `UnsupportedError` if there is no such
    shell, and `UsageError` for a command with a NUL in it.
    """
    program = find_shell(shell, environment.get("PATH"))
    text = _checked(command)
    prepare_report(shell, said)
    held = _HELD_BACK if shell == "bash" else ()
    given = {os.fsencode(name): os.fsencode(value) for name, value in environment.items() if name not in held}
    return ShellStart([program, *_armed(shell, text, environment, said, _evaluate(text, folder))], given)


def prepare_guest_start(
    shell: ShellName, command: str, environment: Mapping[str, str], directory: bytes, *, folder: bytes
) -> ShellStart:
    """As `prepare_start`, in a virtual machine: in the nearest existing directory from ``directory`` upwards, with the
    machine's variables, overridden by ``environment``. ``folder`` is an unused path there; `guest_report` reads the
    state, and removes it. Raises `UsageError` also for a command that is too long.
    """
    text = _checked(command)
    if len(text) > _LONGEST_ARGUMENT:
        raise UsageError(
            f"a command has {len(text)} bytes, and in a virtual machine no more than {_LONGEST_ARGUMENT}",
            hint="write it to a file, and run that",
        )
    said = folder + b"/said"
    held = (*_HELD_BACK, "PWD") if shell == "bash" else ("PWD",)
    given = [os.fsencode(f"{name}={value}") for name, value in environment.items() if name not in held]
    armed = _armed(shell, text, environment, said, _evaluate(text, folder))
    words = [folder, _large(shell, said), directory, b"env", *given, shell.encode(), *armed]
    return ShellStart([b"sh", b"-c", _GUEST, b"sh", *words], {})


_GUEST = rb"""
(umask 077; mkdir "$1" && printf %s "$2" >"$1/said.large" && env -0 >"$1/base") || exit 126
at=$3
until cd -- "$at" 2>/dev/null; do at=${at%/*}; at=${at:-/}; done
[ "$at" = "$3" ] || printf 'holdfast: warning: %s is gone: the command begins in %s
' "$3" "$at" >&2
export PWD
shift 3
exec "$@"
"""


def guest_report(folder: bytes) -> list[bytes]:
    """The command that prints, in a virtual machine, the state that a shell left: see `parse_guest_state`."""
    return [b"sh", b"-c", b'cat "$1/said" "$1/base" 2>/dev/null; rm -rf "$1"', b"sh", folder]


def parse_guest_state(data: bytes) -> ShellState | None:
    """See `read_state`: for a shell in a virtual machine, with the exports that differ from the machine's."""
    end = b"\0%b\0" % END.encode()
    said, found, base = data.partition(end)
    carried = parse_state(said + found)
    if carried is None:
        return None
    own = {os.fsdecode(variable) for variable in base.split(b"\0")}
    return carried._replace(env={name: value for name, value in carried.env.items() if f"{name}={value}" not in own})


def _checked(command: str) -> bytes:
    text = os.fsencode(command)
    if b"\0" in text:
        raise UsageError("a command cannot hold a NUL")
    return text


def _armed(shell: ShellName, text: bytes, environment: Mapping[str, str], said: bytes, evaluate: bytes) -> list[bytes]:
    """The arguments for a shell that runs a command and reports its state."""
    say = report_command(shell, said)
    aliases = _aliases(text)
    own = _own(shell)
    parts = _traps(shell, say, has_own=b"exit" in aliases)
    if aliases:
        parts.append(b"__holdfast=" + quote(_if_child(shell, say)))
        parts += [
            b"%balias %b='%b $({ %beval \"${__holdfast-}\"; } 2>/dev/null)'" % (own, name, name, own)
            for name in aliases
        ]
    parts += _options(shell, environment, bool(aliases))
    script = b"{ %b; } 2>/dev/null; %b" % (b"; ".join(parts), own + evaluate)
    if b"exit" in aliases:
        script += b"\n%beval exit" % own
    options = [option.encode() for option in _ARMS[shell]]
    return [*options, script, shell.encode()]


def quote(text: bytes) -> bytes:
    """``text`` as one word of any shell."""
    return b"'" + text.replace(b"'", b"'\\''") + b"'"


def _own(shell: ShellName) -> bytes:
    """The prefix of a builtin that bypasses functions of the same name, which the environment may define."""
    return b"" if shell == "sh" else b"builtin "


def report_command(shell: ShellName, said: bytes) -> bytes:
    """The command that makes the shell report its state. It changes no exit code that is used. See `prepare_report`."""
    own = _own(shell) or b"command "
    said_first = b"%b printf '%%s\\0' %b \"${PWD-}\"; %b pwd -P; %b printf '\\0'" % (own, MAGIC.encode(), own, own)
    words = b"{ %b -0 || . %b; } && %b printf '%%s\\0' %b" % (_env(), quote(_without_large(said)), own, END.encode())
    return b"{ %b; %b; } 2>/dev/null >| %b" % (said_first, words, quote(said))


def _env() -> bytes:
    return next((place for place in (b"/usr/bin/env", b"/bin/env") if os.access(place, os.X_OK)), b"env")


def _without_large(said: bytes) -> bytes:
    return said + b".large"


_LARGE = rb"""(
@OWN@ set +eu
@OWN@ printf '%s\0' @TOLD@=
@OWN@ export -p >| @NAMES@
while @OWN@ read -r __holdfast_word __holdfast_name; do
  __holdfast_name=${__holdfast_name#-* }
  __holdfast_name=${__holdfast_name%%=*}
  case $__holdfast_word in export|declare|typeset) ;; *) continue;; esac
  case $__holdfast_name in ''|[0-9]*|*[!A-Za-z0-9_]*) continue;; esac
  eval "__holdfast_bytes=\${#$__holdfast_name}"
  case $((4 * __holdfast_bytes > @MOST@)) in
    1) __holdfast_bytes=$(LC_ALL=C; eval "@OWN@ printf %s \"\${#$__holdfast_name}\"");;
  esac
  case $((__holdfast_bytes + ${#__holdfast_name} + 2 > @MOST@)) in
    1) @KEEP@ "$__holdfast_name"; @OWN@ printf '%s\0' "@TOLD@=$__holdfast_name";;
  esac
done < @NAMES@
@ENV@ -0
)
"""
"""Reports the variables when they are too long to start a program: those that are too long get only their names. It
uses builtins alone, as no other program can start.
"""
_KEEP = {"bash": b"builtin export -n", "sh": b"unset", "zsh": b"builtin typeset +x"}


def prepare_report(shell: ShellName, said: bytes) -> None:
    """Write the fallback script of `report_command`, beside ``said``."""
    with open(_without_large(said), "wb") as file:
        file.write(_large(shell, said))


def _large(shell: ShellName, said: bytes) -> bytes:
    words = {
        b"@OWN@": _own(shell) or b"command ",
        b"@TOLD@": TOO_LONG.encode(),
        b"@NAMES@": quote(said + b".names"),
        b"@MOST@": b"%d" % (_PAGES * os.sysconf("SC_PAGE_SIZE")),
        b"@KEEP@": _KEEP[shell],
        b"@ENV@": _env(),
    }
    text = _LARGE
    for word, value in words.items():
        text = text.replace(word, value)
    return text


def _if_child(shell: ShellName, say: bytes) -> bytes:
    r"""``say``, for a substitution: only in a child of the shell itself, not of its subshells. ``$?`` stays.

    A subshell has the ``$$`` of its shell, so the parent process decides.
    """
    parent = b"while read -r __holdfast_key __holdfast_parent; do case $__holdfast_key in PPid:) break;; esac; done"
    return (
        b"__holdfast_status=$?; %b </proc/self/status; "
        b'if [ "$__holdfast_parent" = "$$" ]; then %b; fi; \\%bexit $__holdfast_status' % (parent, say, _own(shell))
    )


def _traps(shell: ShellName, say: bytes, *, has_own: bool) -> list[bytes]:
    own = _own(shell)
    traps = [b"%btrap -- %b EXIT" % (own, quote(say))]
    if has_own and shell != "sh":
        failing = b"{ case $- in *e*) %b;; esac; } 2>/dev/null" % say
        traps.append(b"%btrap -- %b %b" % (own, quote(failing), b"ERR" if shell == "bash" else b"ZERR"))
    if shell != "bash":
        for name in _ENDING:
            dying = b"%btrap - EXIT %b; %b; kill -%b $$" % (own, name, say, name)
            traps.append(b"%btrap -- %b %b" % (own, quote(dying), name))
    return traps


def _aliases(text: bytes) -> list[bytes]:
    """The words of the command that must report it, too."""
    words = set(re.findall(rb"[a-z]+", text))
    return [*([b"exec"] if b"exec" in words else []), *([b"exit"] if b"trap" in words else [])]


def _options(shell: ShellName, environment: Mapping[str, str], has_aliases: bool) -> list[bytes]:
    if shell != "bash":
        return []
    parts = [b"builtin shopt -s expand_aliases"] if has_aliases else []
    if "BASH_ENV" in environment:
        parts.append(b"builtin export BASH_ENV=" + quote(os.fsencode(environment["BASH_ENV"])))
    for variable, option in (("SHELLOPTS", b"builtin set -o"), ("BASHOPTS", b"builtin shopt -s")):
        if variable in environment:
            names = re.findall(rb"[a-z_-]+", os.fsencode(environment[variable]))
            # With noexec no later command would run.
            parts += [b"%b %b" % (option, name) for name in names if name not in (b"noexec", b"history")]
            parts.append(b"builtin export " + variable.encode())
    # Options that print later commands come last.
    return sorted(parts, key=lambda part: part.endswith((b"xtrace", b"verbose", b"errexit", b"nounset")))


def _evaluate(text: bytes, folder: bytes) -> bytes:
    if len(text) <= _LONGEST_ARGUMENT:
        # bash would take a leading hyphen for an option.
        return b"eval " + quote(b" " + text if text.startswith(b"-") else text)
    path = os.path.join(folder, b"command")
    with open(path, "wb") as file:
        file.write(text + b"\n")
    return b". " + quote(path)
