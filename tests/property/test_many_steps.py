"""What is computed at once for very many steps is what each two of them would say by themselves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.files.linux.file_handle import Identity
from holdfast.undo.completion.step_sealer import ConcurrentSteps
from holdfast.undo.journal.records import Made, Mutation
from holdfast.undo.journal.step_footprint import Footprint, FootprintIndex

NAMES = st.sampled_from([b"a", b"b", b"a/a", b"a/b", b"b/a", b"a/a/a", b"a/a/b", b"b/a/b"])
OBJECTS = st.dictionaries(st.sampled_from([Identity(b"one"), Identity(b"two"), Identity(b"three")]), NAMES, max_size=2)


@st.composite
def reaches(draw: st.DrawFn) -> Footprint:
    paths = draw(st.frozensets(NAMES, max_size=3))
    trees = draw(st.frozensets(st.sampled_from(sorted(paths)), max_size=2)) if paths else frozenset[bytes]()
    return Footprint(paths, trees, draw(OBJECTS))


@given(reaches(), st.lists(reaches(), max_size=8))
def test_all_that_meet_one_are_found(one: Footprint, others: list[Footprint]) -> None:
    meetings = FootprintIndex[int]()
    for number, other in enumerate(others):
        meetings.add(number, other)
    assert set(meetings.find_meeting(one)) == {
        number for number, other in enumerate(others) if one.meets(other) is not None
    }


@given(st.lists(st.integers(0, 6), max_size=24))
def test_those_that_overlap_are_found(owners: list[int]) -> None:
    records: dict[int, list[Mutation]] = {step: [] for step in owners}
    for seq, step in enumerate(owners):
        records[step].append(Made(seq, step, 0, Identity(b"")))
    spans = {step: (each[0].seq, each[-1].seq) for step, each in records.items()}
    alone = {
        step
        for step, (first, last) in spans.items()
        if all(end < first or begin > last for other, (begin, end) in spans.items() if other != step)
    }
    together = ConcurrentSteps(records)
    assert {step for step in records if together.is_alone(step)} == alone
