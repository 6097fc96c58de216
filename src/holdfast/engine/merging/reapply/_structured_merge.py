"""The rung ``structure``: files whose structure is known, put together by key: JSON, TOML, YAML, lists of dependencies.

Only what is certain: a key that one side alone has changed is as that side has it; where both have changed one, and
not to the same, it declines. Lists are values, but for lists of dependencies, where an entry is known by the name of
what it requires. Where putting the lines together says the same, that is taken, as everything then stands where people
have put it. Else the result is production's text with the fork's changes in it, so that layout and comments stay: a
file whose layout could not be kept exactly, as it is now, is declined. TOML and YAML need the libraries of the extra
``structure``.
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
        """What a text says, without its layout; raises `Clash`."""
        ...


def kind_of(path: bytes) -> FileKind | None:
    """What puts three versions of the file at ``path`` together; ImportError if that needs what is not there."""
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
    """What a text says; nothing that another says if it is no such file."""
    try:
        return kind.read(text.decode())
    except (Clash, UnicodeDecodeError):
        return Clash
