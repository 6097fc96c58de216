"""A run of very many steps: the work for each of them does not grow with how many there are."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from holdfast.undo import connections, traces
from holdfast.undo.records import StepId

from .conftest import Bench
from .test_desk import Office, opened


def work(office: Office, number: int, beside: StepId | None) -> StepId:
    """A step of several paths; some of them have all steps in common, and some only the one before, which with
    ``beside`` goes on meanwhile.
    """
    step = office.desk.open("command", run="run")
    office.act(
        step,
        lambda actor: (
            actor.write(b"all/%d" % (number % 7), b"%d" % number),
            actor.write(b"new%d" % number, b"new"),
            actor.rename(b"new%d" % number, b"all/n%d" % number),
            actor.unlink(b"all/n%d" % (number - 1)) if number else None,
        ),
    )
    if beside is not None:
        office.act(beside, lambda actor: actor.write(b"beside%d" % number, b"beside"))
        office.desk.close(beside)
    return step


def run_of(office: Office, count: int, *, overlapping: bool) -> list[StepId]:
    steps: list[StepId] = []
    for number in range(count):
        steps.append(work(office, number, steps[-1] if overlapping and steps else None))
        if not overlapping:
            office.desk.close(steps[-1])
    if overlapping:
        office.desk.close(steps[-1])
    return steps


@pytest.mark.parametrize("overlapping", [False, True])
def test_what_is_done_for_a_step_does_not_grow_with_their_number(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, overlapping: bool
) -> None:
    done = 0

    def counted(original: Callable[..., object]) -> Callable[..., object]:
        def count(*arguments: object) -> object:
            nonlocal done
            done += 1
            return original(*arguments)

        return count

    for module, name in ((traces, "_follow"), (connections, "_is_in_the_way")):
        monkeypatch.setattr(module, name, counted(getattr(module, name)))
    (bench.tree / "all").mkdir()
    before = bench.photograph()
    spent: list[int] = []
    with opened(bench) as office:
        for count in (30, 90):
            steps = run_of(office, count, overlapping=overlapping)
            after = bench.photograph()
            done = 0
            office.desk.undo(steps)
            bench.assert_as(before)
            office.desk.redo(steps)
            bench.assert_as(after)
            office.desk.undo(steps)
            spent.append(done)
            bench.assert_as(before)
    assert spent[1] < 4 * spent[0]
    assert os.listdir(bench.tree) == ["all"]
