"""The setup of an interactive shell of a session, which makes it report every line that it runs.

It reads its usual startup files. After them it gets the session's directory and variables again, which they may have
changed, and two hooks. The hook before a line waits until the journal has the line. The hook before a prompt waits
until the line's step has ended, since it starts processes itself, as other prompt commands may. They write
NUL-terminated fields to a named pipe, ``tell``, and read an answer from another.

bash runs ``PS0`` before a line, in a subshell, and ``PROMPT_COMMAND`` after it; zsh has lists of functions for both.
The line is read from bash's history. A line that the user's settings exclude from it (``HISTCONTROL``, ``HISTIGNORE``)
is removed again at the prompt, and is not reported.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.engine.sessions.shell._shell_programs import ShellStart, find_shell, prepare_report, quote, report_command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.model.session_types import ShellName, State

BEGIN, OVER, PROMPT = b"begin", b"over", b"prompt"

_BASH = rb"""
[[ -f ~/.bashrc ]] && . ~/.bashrc
@STATE@
__holdfast_last= __holdfast_prompts=0
__holdfast_kept_out() {
  local pattern
  case $1 in ' '*) case :$__holdfast_control: in *:ignorespace:*|*:ignoreboth:*) return 0;; esac;; esac
  local IFS=:
  set -f
  for pattern in $__holdfast_ignore; do [[ $1 == $pattern ]] && { set +f; return 0; }; done
  set +f
  return 1
}
__holdfast_line() {
  local HISTTIMEFORMAT=
  __holdfast_text=$(builtin history 1)
  __holdfast_text=${__holdfast_text#"${__holdfast_text%%[0-9]*}"}
  __holdfast_number=${__holdfast_text%%[!0-9]*}
  __holdfast_text=${__holdfast_text#"$__holdfast_number"}
  __holdfast_text=${__holdfast_text:2}
}
__holdfast_begin() {
  local __holdfast_text __holdfast_number answer own=$RANDOM$RANDOM$RANDOM
  { __holdfast_line; [[ -o history ]] || __holdfast_text=
  __holdfast_kept_out "$__holdfast_text" && __holdfast_text=
  builtin printf '%s\0' begin "$own" "$__holdfast_text" >@TELL@
  while builtin read -r answer && [[ $answer != "$own" ]]; do :; done <@ANSWER@; } 2>/dev/null
  builtin printf '%s' @BEGINS@
}
__holdfast_prompt() {
  local status=$? __holdfast_text __holdfast_number answer own=over$((++__holdfast_prompts))
  { builtin printf '%s\0' over "$own" "$status" >@TELL@
  while builtin read -r answer && [[ $answer != "$own" ]]; do :; done <@ANSWER@
  @SAY@
  builtin printf '%s\0' prompt "$status" >@TELL@
  __holdfast_line
  if [[ $__holdfast_number != "$__holdfast_last" && -n $__holdfast_last ]]; then
    if __holdfast_kept_out "$__holdfast_text"; then builtin history -d -1
    elif [[ $__holdfast_text == "$__holdfast_before" ]]; then
      case :$__holdfast_control: in *:ignoredups:*|*:ignoreboth:*) builtin history -d -1;; esac
    fi
    __holdfast_before=$__holdfast_text
    __holdfast_line
  fi
  __holdfast_last=${__holdfast_number:-0}
  [[ -n $HISTCONTROL ]] && __holdfast_control=$HISTCONTROL HISTCONTROL=
  [[ -n $HISTIGNORE ]] && __holdfast_ignore=$HISTIGNORE HISTIGNORE=; } 2>/dev/null
  builtin printf '%s' @ENDS@
  return $status
}
__holdfast_control=$HISTCONTROL __holdfast_ignore=$HISTIGNORE
HISTCONTROL= HISTIGNORE=
builtin export -n PS0 PROMPT_COMMAND HISTCONTROL HISTIGNORE
[[ -n $(builtin trap -p EXIT) ]] || builtin trap -- @QUOTED_SAY@ EXIT
PS0=${PS0-}'$(__holdfast_begin)'
if [[ ${BASH_VERSINFO[0]} -ge 5 && $(declare -p PROMPT_COMMAND 2>/dev/null) == 'declare -a'* ]]; then
  PROMPT_COMMAND=(__holdfast_prompt "${PROMPT_COMMAND[@]}")
else
  PROMPT_COMMAND="__holdfast_prompt${PROMPT_COMMAND:+; $PROMPT_COMMAND}"
fi
"""

_ZSH_ENV = rb"""
@DOTDIR@
[[ -f ${ZDOTDIR:-$HOME}/.zshenv ]] && source ${ZDOTDIR:-$HOME}/.zshenv
typeset -g __holdfast_dotdir=${ZDOTDIR-none}
ZDOTDIR=@FOLDER@
"""

_ZSH = rb"""
if [[ $__holdfast_dotdir == none ]]; then unset ZDOTDIR; else ZDOTDIR=$__holdfast_dotdir; fi
[[ -f ${ZDOTDIR:-$HOME}/.zshrc ]] && source ${ZDOTDIR:-$HOME}/.zshrc
@STATE@
__holdfast_begin() {
  emulate -L zsh
  local line=${1:-$3} answer own=$RANDOM$RANDOM$RANDOM
  [[ $line == ' '* && -o hist_ignore_space ]] && line=
  { builtin printf '%s\0' begin $own "$line" >@TELL@
  while builtin read -r answer && [[ $answer != $own ]]; do :; done <@ANSWER@; } 2>/dev/null
  builtin printf '%s' @BEGINS@
}
__holdfast_prompt() {
  local status_=$? answer own=over$((++__holdfast_prompts))
  { builtin printf '%s\0' over $own $status_ >@TELL@
  while builtin read -r answer && [[ $answer != $own ]]; do :; done <@ANSWER@
  @SAY@
  builtin printf '%s\0' prompt $status_ >@TELL@; } 2>/dev/null
  builtin printf '%s' @ENDS@
}
__holdfast_leave() { @SAY@ }
typeset -gi __holdfast_prompts=0
typeset -ga preexec_functions precmd_functions zshexit_functions
preexec_functions+=(__holdfast_begin)
precmd_functions=(__holdfast_prompt $precmd_functions)
zshexit_functions+=(__holdfast_leave)
"""


def prepare(
    shell: ShellName,
    environment: Mapping[str, str],
    state: State,
    *,
    folder: bytes,
    said: bytes,
    tell: bytes,
    answer: bytes,
    marks: tuple[bytes, bytes],
) -> ShellStart:
    """The start of an interactive ``shell`` of a session in ``state``. Its files are written into ``folder``, which is
    private. Raises `UnsupportedError` if there is no such shell.

    The shell prints ``marks`` before and after the output of a line.
    """
    program = find_shell(shell, environment.get("PATH"))
    prepare_report(shell, said)
    given = {os.fsencode(name): os.fsencode(value) for name, value in environment.items()}
    words = {
        b"@STATE@": _state(environment, state),
        b"@TELL@": quote(tell),
        b"@ANSWER@": quote(answer),
        b"@BEGINS@": quote(marks[0]),
        b"@ENDS@": quote(marks[1]),
        b"@SAY@": report_command(shell, said),
        b"@QUOTED_SAY@": quote(report_command(shell, said)),
        b"@FOLDER@": quote(folder),
        b"@DOTDIR@": b"ZDOTDIR=" + quote(given[b"ZDOTDIR"]) if b"ZDOTDIR" in given else b"unset ZDOTDIR",
    }
    if shell == "zsh":
        _write(os.path.join(folder, b".zshenv"), _ZSH_ENV, words)
        _write(os.path.join(folder, b".zshrc"), _ZSH, words)
        return ShellStart([program, b"-i"], given | {b"ZDOTDIR": folder})
    rc = os.path.join(folder, b"bashrc")
    _write(rc, _BASH, words)
    return ShellStart([program, b"--rcfile", rc, b"-i"], given)


def _state(environment: Mapping[str, str], state: State) -> bytes:
    """Commands that restore a session's directory and variables in a shell, whatever the user's files have changed."""
    here = os.fsencode(environment["PWD"])
    lines = [b"[[ $PWD == %b ]] || builtin cd -- %b" % (quote(here), quote(here))]
    lines += [
        b"export %b=%b" % (os.fsencode(name), quote(os.fsencode(value)))
        for name, value in state.env.items()
        if name.isidentifier()
    ]
    names = [os.fsencode(name) for name in state.unset if name.isidentifier()]
    return b"\n".join([*lines, *([b"unset " + b" ".join(names)] if names else [])])


def _write(path: bytes, text: bytes, words: Mapping[bytes, bytes]) -> None:
    for word, value in words.items():
        text = text.replace(word, value)
    with open(path, "wb") as file:
        file.write(text)
