"""Reads plain command lines without argparse, which takes longer to load than a short command has to do."""

from __future__ import annotations

from types import SimpleNamespace

from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence
    from typing import Any

REST = "..."
"""As ``nargs``: all remaining words, as `argparse.REMAINDER`."""

_MANY = 1 << 30
_TAKES: dict[object, tuple[int, int]] = {None: (1, 1), "?": (0, 1), "*": (0, _MANY), "+": (1, _MANY), REST: (0, _MANY)}
"""How many words a positional takes at least and at most, by its ``nargs``."""

_SWITCHES = {"store_true": (True, False), "store_false": (False, True), "store_const": (None, None)}
"""Values of options without a word: when given, and when absent."""

_KEYWORDS = {"action", "choices", "const", "default", "dest", "help", "metavar", "nargs", "required", "type"}


class _Argument(NamedTuple):
    """An option or a positional; see `argparse.ArgumentParser.add_argument`."""

    dest: str
    nargs: str | int | None
    """0 for a switch."""
    appends: bool
    bare: object
    """The value if given without a word."""
    default: object
    """The value if not given."""
    convert: Callable[[str], object] | None
    choices: Sequence[object] | None
    required: bool
    group: object
    """The mutually exclusive group that it is in, or None."""

    def meaning(self, words: Sequence[str], before: Any) -> object:
        """The value from ``words`` and the value ``before``; raises the errors of its type."""
        if self.nargs == 0:
            return self.bare
        if self.nargs in ("*", "+", REST):
            return [self._value(word) for word in words]
        found = self._value(words[0]) if words else self.instead(self.bare)
        return [*(before or ()), found] if self.appends else found

    def instead(self, value: object) -> object:
        """The value of a default: a text is converted like a word."""
        return self._value(value) if isinstance(value, str) else value

    def _value(self, word: str) -> object:
        found = word if self.convert is None else self.convert(word)
        if self.choices is not None and found not in self.choices:
            raise ValueError(word)
        return found


class Reader:
    """Takes the calls by which a command describes its arguments to an `argparse.ArgumentParser`; then reads words."""

    usage = ""

    def __init__(self) -> None:
        self._options: dict[str, _Argument] = {}
        self._positionals: list[_Argument] = []
        self._arguments: dict[str, _Argument] = {}
        self._odd = False
        """Whether there was anything that is not known here."""

    def add_argument_group(self, _title: str) -> Reader:
        """See `argparse.ArgumentParser.add_argument_group`; such groups matter for help alone."""
        return self

    def add_mutually_exclusive_group(self, *, required: bool = False) -> _Exclusive:
        """See `argparse.ArgumentParser.add_mutually_exclusive_group`."""
        self._odd |= required
        return _Exclusive(self)

    def add_argument(self, *names: str, group: object = None, **keywords: Any) -> None:
        """See `argparse.ArgumentParser.add_argument`; ``group`` is the mutually exclusive one, if it is in one."""
        name = next((name for name in names if name.startswith("--")), names[0])
        is_option = name.startswith("-")
        action, nargs = keywords.get("action", "store"), keywords.get("nargs")
        bare, default = _SWITCHES.get(action, (None, None))
        default = keywords.get("default", default)
        argument = _Argument(
            dest=keywords.get("dest") or (name.lstrip("-").replace("-", "_") if is_option else name),
            nargs=0 if action in _SWITCHES else nargs,
            appends=action == "append",
            bare=keywords.get("const", bare) if is_option else default,
            default=default,
            convert=keywords.get("type"),
            choices=keywords.get("choices"),
            required=keywords.get("required", False),
            group=group,
        )
        known = keywords.keys() <= _KEYWORDS and argument.dest not in self._arguments
        self._arguments[argument.dest] = argument
        if is_option:
            known = known and action in ("store", "append", *_SWITCHES)
            self._options |= dict.fromkeys(names, argument)
        else:
            known = known and action == "store" and nargs in _TAKES and group is None
            # argparse has special rules for defaults of many words.
            known = known and (nargs in (None, "?") or default is None)
            # A REST argument must be alone: argparse could split the words of arguments before it.
            known = known and not (self._positionals and REST in (nargs, self._positionals[0].nargs))
            self._positionals.append(argument)
        self._odd |= not known

    def read(self, words: Sequence[str]) -> argparse.Namespace | None:
        """Parse ``words`` with the names and values that argparse would give; None where that is not certain.

        Lines that argparse refuses always give None; some that it accepts do, too.
        """
        given = None if self._odd else self._sort(words)
        if given is None:
            return None
        said = {argument.dest for argument, _ in given}
        exclusive = [argument.group for argument, _ in given if argument.group is not None]
        if len(exclusive) > len(set(exclusive)):
            return None
        found: Any = SimpleNamespace()
        try:
            for dest, argument in self._arguments.items():
                if argument.required and dest not in said:
                    return None
                setattr(found, dest, argument.default if dest in said else argument.instead(argument.default))
            for argument, own in given:
                setattr(found, argument.dest, argument.meaning(own, getattr(found, argument.dest)))
        except Exception:  # noqa: BLE001 - argparse will come upon it as well, and has the words for it
            return None
        return found

    def _sort(self, words: Sequence[str]) -> list[tuple[_Argument, Sequence[str]]] | None:
        """Every given option and positional with its words; None if the positionals are not adjacent."""
        rest = bool(self._positionals) and self._positionals[0].nargs == REST
        given: list[tuple[_Argument, Sequence[str]]] = []
        block: Sequence[str] = ()
        at = 0
        while at < len(words):
            end = at
            while end < len(words) and _is_bare(words[end]):
                end += 1
            if rest and (end > at or words[at] == "--"):
                end = len(words)
            if end > at:
                if block:
                    return None
                block, at = words[at:end], end
                continue
            name, equals, value = words[at].partition("=") if words[at].startswith("--") else (words[at], "", "")
            option = self._options.get(name)
            if option is None or option.nargs not in (0, None, "?") or value == "--":
                return None
            behind = () if option.nargs == 0 else words[at + 1 : at + 2]
            own = [value] if equals else [word for word in behind if _is_bare(word)]
            if (equals and option.nargs == 0) or (not own and option.nargs is None):
                return None
            given.append((option, own))
            at += 1 if equals else 1 + len(own)
        shared = self._share(block)
        return None if shared is None else given + shared

    def _share(self, words: Sequence[str]) -> list[tuple[_Argument, Sequence[str]]] | None:
        """Every positional with its words: the first take as many as the later ones can do without."""
        spare = len(words) - sum(_TAKES[argument.nargs][0] for argument in self._positionals)
        if spare < 0 or any(word.startswith("-=") for word in words):  # some versions take -= for any option
            return None
        shared: list[tuple[_Argument, Sequence[str]]] = []
        for argument in self._positionals:
            least, most = _TAKES[argument.nargs]
            more = min(spare, most - least)
            shared.append((argument, words[: least + more]))
            words, spare = words[least + more :], spare - more
        return None if spare else shared


class _Exclusive:
    """A mutually exclusive group of options."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def add_argument(self, *names: str, **keywords: Any) -> None:
        """See `argparse.ArgumentParser.add_argument`."""
        self._reader.add_argument(*names, group=self, **keywords)


def _is_bare(word: str) -> bool:
    """Whether a word is surely no option and has no other special meaning."""
    return not word.startswith("-")
