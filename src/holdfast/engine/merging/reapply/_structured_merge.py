"""The rung ``structure``: merges files of known structure by key: JSON, TOML, YAML, lists of dependencies.

It makes only certain decisions: a key that one side changed gets that side's value; if both changed one differently, it
declines. Lists count as values, except lists of dependencies, whose entries are keyed by the name of the requirement.
If merging by lines gives the same value, that text is taken, which keeps all layout. Otherwise the result is
production's text with the fork's changes in it, so that layout and comments stay. It declines a file whose present
layout could not be kept exactly. TOML and YAML need the libraries of the extra ``structure``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from holdfast.engine.merging.reapply._keyed_tree import Clash
from holdfast.engine.merging.reapply._strategy import Declined, NewContent
from holdfast.engine.merging.reapply._text_merge import merge_text

if TYPE_CHECKING:
    from holdfast.engine.merging.reapply._strategy import ReapplyTask, RungName, RungOutcome


class StructureRung:
    """See the module."""

    name: RungName = "structure"
    takes_all = True

    def apply(self, task: ReapplyTask) -> RungOutcome:
        """See `Rung.apply`."""
        if task.now is None or task.before is None or task.after is None:
            return Declined("one side has no such file")
        kind = kind_of(task.path)
        if kind is None:
            return Declined("the structure of such a file is not known")
        try:
            base, ours, theirs = (one.decode() for one in (task.before, task.now, task.after))
            merged = kind.merge(base, ours, theirs)
            by_lines = merge_text(task.before, task.now, task.after)
            if by_lines is not None and _says(kind, by_lines) == kind.read(merged):
                return NewContent(by_lines, "by key, and by lines alike")
            return NewContent(merged.encode(), "by key")
        except ImportError as error:
            from holdfast.model.extras import install_command

            return Declined(f"needs {error.name}: {install_command('structure')}")
        except Clash as clash:
            return Declined(str(clash))
        except UnicodeDecodeError:
            return Declined("it is not UTF-8")
        except RecursionError:
            return Declined("it is nested too deeply")


class FileKind(Protocol):
    """A kind of file: a module of this package."""

    def merge(self, base: str, ours: str, theirs: str) -> str:
        """``ours`` with what ``theirs`` has changed in ``base``; raises `Clash` where it declines."""
        ...

    def read(self, text: str) -> Any:
        """The value of a text, without its layout; raises `Clash`."""
        ...


def kind_of(path: bytes) -> FileKind | None:
    """The merging function for the file at ``path``; ImportError if it needs a missing library."""
    name = path.rpartition(b"/")[2].lower()
    if name.endswith((b".txt", b".in")) and (b"requirements" in name or b"constraints" in name):
        from holdfast.engine.merging.reapply import _requirements as kind
    elif name.endswith(b".toml"):
        from holdfast.engine.merging.reapply import _keyed_toml as kind
    elif name.endswith((b".yaml", b".yml")):
        from holdfast.engine.merging.reapply import _keyed_yaml as kind
    elif name.endswith(b".json"):
        from holdfast.engine.merging.reapply import _keyed_json as kind
    else:
        return None
    return kind


def _says(kind: FileKind, text: bytes) -> Any:
    """The value of a text; a value unequal to all others if the text is invalid."""
    try:
        return kind.read(text.decode())
    except (Clash, UnicodeDecodeError):
        return Clash
