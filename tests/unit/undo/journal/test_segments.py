"""The journal's segments: what a restart makes void stays void, wherever it is killed."""

from __future__ import annotations

import os
from itertools import combinations

import pytest

from holdfast.undo.journal.records import Begin, ForeignEdit, ReversalBegin, ReversalPosition
from holdfast.undo.journal.segments import Journal, read_journal, segments


@pytest.mark.parametrize("removed", [which for count in range(4) for which in combinations((1, 2, 3), count)])
def test_i3_what_a_killed_restart_has_not_removed_says_nothing(tmp_path, monkeypatch, removed):
    directory = os.fsencode(tmp_path)
    reverse = ReversalBegin(1, (1,), forward=False, at=0)
    begin = Begin(2, 1, "command", "", (), b"", 0)
    for record in (reverse, begin):
        journal = Journal(directory)
        journal.append(record)
        journal.close()
    journal = Journal(directory)
    journal.append(ReversalPosition(3, 1, 0))
    assert read_journal(directory).records == [reverse, begin, ReversalPosition(3, 1, 0)]
    barrier = ForeignEdit(4, (b"f",), 0, "")
    with monkeypatch.context() as killed:
        killed.setattr(os, "unlink", lambda _path: None)
        journal.restart([barrier])
    for number in removed:
        os.unlink(directory + b"/journal-%08d" % number)
    assert read_journal(directory).records == [barrier]
    journal.restart()
    assert read_journal(directory).records == []
    assert segments(directory) == [5]
    journal.close()
