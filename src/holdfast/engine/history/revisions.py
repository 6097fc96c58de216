"""Names of checkpoints for people: ids, unique prefixes, labels, ``@``, ancestors, ranges."""

from __future__ import annotations

import unicodedata
from itertools import chain

from holdfast.model.errors import NotFoundError, UsageError
from holdfast.model.fast_typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.engine.opening.context import Context, StoreContext
    from holdfast.model.ids import CheckpointId
    from holdfast.store.catalog.catalog import Catalog

MAX_LABEL_CHARACTERS = 200
MIN_PREFIX_DIGITS = 4
ID_DIGITS = 24

_MAX_NAMED = 8
_HEX_DIGITS = frozenset("0123456789abcdefABCDEF")
_DIGITS = frozenset("0123456789")
_MAX_COUNT_DIGITS = 6
# Directional overrides and isolates: they make a line of output read other than it is.
_MISLEADING = frozenset("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


class CheckpointNames(Protocol):
    """The lookups for `resolve` in one workspace's checkpoints."""

    def head(self) -> CheckpointId | None:
        """The tree's checkpoint, None before the first. After an undo it is not the newest."""
        ...

    def by_prefix(self, prefix: str) -> Sequence[CheckpointId]:
        """The checkpoints whose id begins with ``prefix`` (lower-case hex digits); a handful is enough."""
        ...

    def by_label(self, label: str) -> CheckpointId | None:
        """The newest checkpoint with exactly this label; an imported one only if no other has it, as another user
        labelled it.
        """
        ...

    def labels(self) -> Iterable[str]:
        """Labels in use, to suggest from when a name is unknown."""
        ...

    def parent(self, checkpoint: CheckpointId) -> CheckpointId | None:
        """The parent of a checkpoint; None without one."""
        ...


def resolve(text: str, names: CheckpointNames) -> CheckpointId:
    """The checkpoint that ``text`` names.

    In this order: ``@`` is the tree's checkpoint (after a restore of v1 that is v1; later ones have their ids). A label
    is the newest checkpoint that has it (an imported one only if no other has). 4 or more hex digits are the one id
    with this prefix. Any of these followed by ``-`` or ``-N`` is the parent or the Nth ancestor (``@-3``).

    Raises `UsageError` for an ambiguous prefix, with its ids, and `NotFoundError` with similar names.
    """
    found = _resolve_exact(text, names)
    if found is not None:
        return found
    name, _, count = text.rpartition("-")
    if name and len(count) <= _MAX_COUNT_DIGITS and _DIGITS.issuperset(count):
        base = _resolve_exact(name, names)
        if base is not None:
            return _ancestor(base, int(count or 1), name, names)
        text = name if name == "@" else text
    if text == "@":
        raise NotFoundError("there is no checkpoint yet", hint="take one: holdfast checkpoint")
    near = _suggestions(text, names)
    kind, colon, _ = text.partition(":")
    if near:
        hint = f"did you mean {' or '.join(near)}?"
    elif colon and kind.isalpha():
        hint = f"if that is a row of the log, `holdfast show {text}` names its checkpoints"
    elif text[-1:].isalpha() and _DIGITS.issuperset(text[:-1]) and len(text) > 1:
        hint = f"if that is an age, `holdfast log --until {text}` lists the states until then"
    else:
        hint = "holdfast log lists the checkpoints"
    raise NotFoundError(f"no checkpoint is called {text!r}", hint=hint)


def split_range(text: str) -> tuple[str, str] | None:
    """The two names of a range ``A..B``, or None if it is no range; an empty side means ``@``.

    Raises `UsageError` if there is more than one ``..`` in it.
    """
    if ".." not in text:
        return None
    base, _, target = text.partition("..")
    if ".." in target or target.startswith("."):
        raise UsageError(f"not a range: {text!r} (expected A..B)")
    return base or "@", target or "@"


def check_label(label: str) -> str:
    """Return ``label`` if a checkpoint may bear it (the empty one means none); raise `UsageError` otherwise.

    Refused: over 200 characters, control characters and marks that change the direction of text, invalid Unicode, white
    space at either end, ``..`` (a range), a first ``@`` or ``-``, and texts that look like an id (4 to 24 hex digits).
    """
    if len(label) > MAX_LABEL_CHARACTERS:
        raise UsageError(f"bad label: it has {len(label)} characters, the limit is {MAX_LABEL_CHARACTERS}")
    if any(unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") or c in _MISLEADING for c in label):
        raise UsageError(f"bad label {label!a}: it holds a control character or is not valid Unicode")
    reason = None
    if label != label.strip():
        reason = "it begins or ends with white space"
    elif label.startswith(("@", "-")):
        reason = f"it begins with {label[0]!r}"
    elif ".." in label:
        reason = "it holds '..', which means a range"
    elif _is_like_id(label):
        reason = "it could be mistaken for a checkpoint's id"
    if reason is not None:
        raise UsageError(f"bad label {label!r}: {reason}")
    return label


def _is_hex(text: str, least: int, most: int) -> bool:
    return least <= len(text) <= most and _HEX_DIGITS.issuperset(text)


def _is_like_id(label: str) -> bool:
    """True for an id, or the beginning of one, also if an ancestor's number follows."""
    name, _, count = label.partition("-")
    return _is_hex(name, MIN_PREFIX_DIGITS, ID_DIGITS) and _DIGITS.issuperset(count)


def _resolve_exact(text: str, names: CheckpointNames) -> CheckpointId | None:
    if text == "@":
        return names.head()
    labelled = names.by_label(text) if text else None
    if labelled is not None:
        return labelled
    if not _is_hex(text, MIN_PREFIX_DIGITS, ID_DIGITS):
        return None
    found = names.by_prefix(text.lower())
    if len(found) > 1:
        shown = ", ".join(found[:_MAX_NAMED]) + (", …" if len(found) > _MAX_NAMED else "")
        raise UsageError(f"{text!r} names {len(found)} checkpoints: {shown}", hint="give more digits")
    return found[0] if found else None


def _ancestor(base: CheckpointId, count: int, name: str, names: CheckpointNames) -> CheckpointId:
    at = base
    for step in range(count):
        parent = names.parent(at)
        if parent is None:
            raise NotFoundError(
                f"{name!r} has {step} {'ancestor' if step == 1 else 'ancestors'}, there is no {name}-{count}",
                hint="holdfast log lists the checkpoints",
            )
        at = parent
    return at


def _suggestions(text: str, names: CheckpointNames) -> list[str]:
    import difflib

    near: list[str] = []
    if _is_hex(text, MIN_PREFIX_DIGITS, ID_DIGITS):
        near += names.by_prefix(text[:MIN_PREFIX_DIGITS].lower())
    elif _is_hex(text, 1, MIN_PREFIX_DIGITS - 1):
        near += names.by_prefix(text.lower())
    near += difflib.get_close_matches(text[:MAX_LABEL_CHARACTERS], sorted(set(names.labels())), n=3, cutoff=0.6)
    return near[:_MAX_NAMED]


# Resolving names in one workspace: its own labels, and the ids of its home.


def resolve_name(context: Context, name: str) -> CheckpointId:
    """See `revisions.resolve`."""
    return resolve(name, _WorkspaceNames(context))


def resolve_name_for_restore(context: Context, name: str) -> CheckpointId:
    """As `resolve_name`, but ``@`` skips rescue checkpoints, if the tree's line has another one."""
    return resolve(name, _RestoreNames(context))


def resolve_id(shared: StoreContext, name: str) -> CheckpointId:
    """The checkpoint of any workspace of the home that ``name`` names by its id: see `resolve`."""
    return resolve(name, _HomeNames(shared.store.catalog))


class _HomeNames:
    """Names without a workspace: ids alone, and their ancestors."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def head(self) -> CheckpointId | None:
        raise NotFoundError("@ needs a workspace, and none is open", hint="give the id of a checkpoint, or -w DIR")

    def by_prefix(self, prefix: str) -> Sequence[CheckpointId]:
        return self._catalog.by_prefix(prefix)

    def by_label(self, label: str) -> CheckpointId | None:  # noqa: ARG002
        return None

    def labels(self) -> Iterable[str]:
        return ()

    def parent(self, checkpoint: CheckpointId) -> CheckpointId | None:
        return self._catalog.checkpoint(checkpoint).parent


class _WorkspaceNames:
    def __init__(self, context: Context) -> None:
        self._catalog = context.catalog
        self._workspace = context.workspace.id

    def head(self) -> CheckpointId | None:
        return self._catalog.cursor(self._workspace).head

    def by_prefix(self, prefix: str) -> Sequence[CheckpointId]:
        return self._catalog.by_prefix(prefix)

    def by_label(self, label: str) -> CheckpointId | None:
        found = self._catalog.by_label(label, self._workspace)
        own = [one for one in found if one.kind != "import"]
        return next((one.id for one in own or found), None)

    def labels(self) -> Iterable[str]:
        return chain.from_iterable(checkpoint.labels for checkpoint in self._catalog.checkpoints(self._workspace))

    def parent(self, checkpoint: CheckpointId) -> CheckpointId | None:
        return self._catalog.checkpoint(checkpoint).parent


class _RestoreNames(_WorkspaceNames):
    def head(self) -> CheckpointId | None:
        head = at = super().head()
        while at is not None and self._catalog.checkpoint(at).kind == "rescue":
            at = self.parent(at)
        return head if at is None else at
