"""Names of checkpoints: what they mean, what is ambiguous, what is refused as a label."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.engine.history.revisions import check_label, resolve, split_range
from holdfast.model.errors import NotFoundError, UsageError
from holdfast.model.ids import CheckpointId

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Line:
    """Checkpoints in a row, oldest first, each the parent of the next."""

    def __init__(self, *rows: tuple[str, str]) -> None:
        self._rows = [(CheckpointId(identity.ljust(24, "0")), label) for identity, label in rows]

    def head(self) -> CheckpointId | None:
        return self._rows[-1][0] if self._rows else None

    def by_prefix(self, prefix: str) -> Sequence[CheckpointId]:
        return [identity for identity, _ in self._rows if identity.startswith(prefix)]

    def by_label(self, label: str) -> CheckpointId | None:
        return next((identity for identity, name in reversed(self._rows) if name == label), None)

    def labels(self) -> Iterable[str]:
        return [label for _, label in self._rows if label]

    def parent(self, checkpoint: CheckpointId) -> CheckpointId | None:
        at = [identity for identity, _ in self._rows].index(checkpoint)
        return self._rows[at - 1][0] if at else None


LINE = Line(
    ("aaaa1", "start"), ("aaaa2", "v1-2"), ("bbbb3", "start"), ("cccc4", ""), ("dddd5", "auto-2026-02-11T15:04:05Z")
)


@pytest.mark.parametrize(
    ("name", "digits"),
    [
        ("@", "dddd5"),
        ("@-", "cccc4"),
        ("@-0", "dddd5"),
        ("@-3", "aaaa2"),
        ("@-4", "aaaa1"),
        ("bbbb", "bbbb3"),
        ("BBBB3", "bbbb3"),
        ("aaaa2".ljust(24, "0"), "aaaa2"),
        ("bbbb3-", "aaaa2"),
        ("bbbb3-2", "aaaa1"),
        ("start", "bbbb3"),
        ("start-2", "aaaa1"),
        ("v1-2", "aaaa2"),
        ("v1-2-1", "aaaa1"),
        ("auto-2026-02-11T15:04:05Z", "dddd5"),
        ("auto-2026-02-11T15:04:05Z-", "cccc4"),
    ],
)
def test_a_name_means_one_checkpoint(name: str, digits: str) -> None:
    assert resolve(name, LINE) == digits.ljust(24, "0")


def test_a_prefix_of_several_is_an_error_that_names_them() -> None:
    with pytest.raises(UsageError, match=r"names 2 checkpoints: aaaa10{19}, aaaa20{19}"):
        resolve("aaaa", LINE)
    with pytest.raises(UsageError, match="names 2 checkpoints"):
        resolve("aaaa-1", LINE)


def test_of_very_many_only_some_are_named() -> None:
    many = Line(*((f"abcd{n:02d}", "") for n in range(30)))
    with pytest.raises(UsageError) as caught:
        resolve("abcd", many)
    assert caught.value.message.count("abcd") == 9
    assert caught.value.message.endswith(", …")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("strat", "did you mean start?"),
        ("bbbb4", f"did you mean {'bbbb3'.ljust(24, '0')}?"),
        ("bbb", f"did you mean {'bbbb3'.ljust(24, '0')}?"),
        ("quite-else", "holdfast log lists the checkpoints"),
        ("run:1234", "if that is a row of the log, `holdfast show run:1234` names its checkpoints"),
        ("", "holdfast log lists the checkpoints"),
        ("v9-7", "holdfast log lists the checkpoints"),
        ("start-x", "did you mean start?"),
        ("start-\N{ARABIC-INDIC DIGIT TWO}", "did you mean start?"),
        ("start-0000001", "holdfast log lists the checkpoints"),
    ],
)
def test_an_unknown_name_comes_with_what_is_near(name: str, hint: str) -> None:
    with pytest.raises(NotFoundError) as caught:
        resolve(name, LINE)
    assert caught.value.hint == hint
    assert repr(name) in caught.value.message


def test_too_few_ancestors_are_counted() -> None:
    with pytest.raises(NotFoundError, match="'@' has 4 ancestors, there is no @-9"):
        resolve("@-9", LINE)
    with pytest.raises(NotFoundError):
        resolve("@-99999999999999999999", LINE)
    with pytest.raises(NotFoundError):
        resolve("@-" + "9" * 5000, LINE)


@pytest.mark.parametrize("name", ["@", "@-", "@-2"])
def test_without_a_checkpoint_there_is_no_newest(name: str) -> None:
    with pytest.raises(NotFoundError, match="there is no checkpoint yet"):
        resolve(name, Line())


@pytest.mark.parametrize(
    ("text", "sides"),
    [
        ("a..b", ("a", "b")),
        ("@-3..@", ("@-3", "@")),
        ("a..", ("a", "@")),
        ("..b", ("@", "b")),
        ("v1.2", None),
        ("@", None),
    ],
)
def test_ranges(text: str, sides: tuple[str, str] | None) -> None:
    assert split_range(text) == sides


@pytest.mark.parametrize("text", ["a...b", "a..b..c", "...."])
def test_what_is_no_range(text: str) -> None:
    with pytest.raises(UsageError, match="not a range"):
        split_range(text)


@pytest.mark.parametrize(
    "label",
    [
        *("", "before refactor", "v1.2", "release-2", "été", "abc", "face it", "👍🏽", "x" * 200),
        *("a" * 25, "cafe-2x", "cafe-2-2", "abc-1", "caféé"),
    ],
)
def test_good_labels(label: str) -> None:
    assert check_label(label) == label


@pytest.mark.parametrize(
    ("label", "reason"),
    [
        ("@", "begins with '@'"),
        ("@home", "begins with '@'"),
        ("-m", "begins with '-'"),
        ("a..b", "means a range"),
        ("beef", "mistaken for a checkpoint's id"),
        ("DEADBEEF", "mistaken for a checkpoint's id"),
        ("2026", "mistaken for a checkpoint's id"),
        ("cafe-2", "mistaken for a checkpoint's id"),
        ("cafe-", "mistaken for a checkpoint's id"),
        ("a" * 24, "mistaken for a checkpoint's id"),
        ("a\nb", "control character"),
        ("\x1b[31m", "control character"),
        ("a\u202eb", "control character"),
        ("a\udcff", "not valid Unicode"),
        (" a", "white space"),
        ("x" * 201, "201 characters"),
    ],
)
def test_bad_labels_are_refused_with_the_reason(label: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        check_label(label)
