"""The best provider is chosen, or the one that was asked for, and the reason said."""

from __future__ import annotations

from typing import Any, cast

import pytest

from holdfast.model.errors import UnsupportedError
from holdfast.snapshot.port import Capabilities, Provider
from holdfast.snapshot.provider_selection import choose


class Offer:
    """A provider that can only be asked what it can do."""

    def __init__(self, name: str, score: int, **more: Any) -> None:
        self.name = name
        self._found = Capabilities(name, score, more.pop("modes", ("worktree",)), **more)

    def detect(self) -> Capabilities:
        """See `Provider.detect`."""
        return self._found


def offers(*given: Offer) -> list[Provider]:
    return [cast("Provider", one) for one in given]


GIVEN = offers(
    Offer("a", 50, modes=("worktree", "in-place")),
    Offer("b", 80, carries_ignored=True),
    Offer("c", 80),
    Offer("d", 0, notes=("it needs root",)),
)


def test_the_highest_score_wins_and_the_first_of_several() -> None:
    choice = choose(GIVEN)
    assert choice.provider is GIVEN[1]
    assert choice.reason == "its score, 80, is the highest"


def test_one_that_can_capture_nothing_now_is_passed_over_unless_it_is_named() -> None:
    given = [*GIVEN, *offers(Offer("e", 90, not_now="a rebase is under way"))]
    choice = choose(given)
    assert choice.provider is GIVEN[1]
    assert choice.passed_over == ("e: a rebase is under way",)
    assert choice.reason == "its score, 80, is the highest; not e: a rebase is under way"
    assert choose(given, "e").provider is given[-1]
    assert choose(GIVEN).passed_over == ()
    with pytest.raises(UnsupportedError, match="e: a rebase is under way"):
        choose(given[-1:])


def test_what_is_needed_comes_before_the_score() -> None:
    choice = choose(GIVEN, mode="in-place")
    assert choice.provider is GIVEN[0]
    assert choice.reason == "it is the only one that can be used here"
    assert choose(GIVEN, ignored=True).provider is GIVEN[1]


def test_the_one_that_is_named_is_taken_or_refused() -> None:
    choice = choose(GIVEN, "c")
    assert choice.provider is GIVEN[2]
    assert choice.reason == "snapshot.provider names it"
    for wanted, reason in (("d", "d: it needs root"), ("e", "there is none of that name")):
        with pytest.raises(UnsupportedError, match=reason):
            choose(GIVEN, wanted)
    with pytest.raises(UnsupportedError, match="c: it does not carry ignored files"):
        choose(GIVEN, "c", ignored=True)


@pytest.mark.parametrize(
    ("key", "said", "instead"),
    [
        ("snapshot.provider", "the provider d (snapshot.provider)", "set snapshot.provider to auto, and"),
        (None, "the provider d, which was asked for,", "name none, and"),
    ],
)
def test_whoever_named_it_is_told_what_to_do_instead(key: str | None, said: str, instead: str) -> None:
    with pytest.raises(UnsupportedError) as refused:
        choose(GIVEN, "d", key=key)
    assert refused.value.message == f"{said} cannot be used here: d: it needs root"
    assert refused.value.hint is not None
    assert refused.value.hint.startswith(instead)
    assert "holdfast doctor" in refused.value.hint
    with pytest.raises(UnsupportedError) as refused:
        choose(GIVEN, "c", key=key, ignored=True)
    assert "of those that carry ignored files" in (refused.value.hint or "")


def test_where_none_can_be_used_each_says_why() -> None:
    with pytest.raises(UnsupportedError, match=r"a: it has no mode overlay; .*d: it needs root"):
        choose(GIVEN, mode="overlay")
