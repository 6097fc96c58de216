"""I1, I8: what processes of a run do to files that they share is nobody else's, whenever their steps end, are undone,
redone or denied; and what somebody else does is seen all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.model.errors import RefusedError

from ..callers import Callers, Move, moves
from ..sampling import some

_TOGETHER = 50
"""So many histories share a log: to make one takes longer than a history."""


def _play(base: Path, seed: int, after: Callable[[Callers, Move], object] = lambda _callers, _move: None) -> None:
    callers = Callers(base, is_crowded=seed % 7 == 0)
    try:
        for move in moves(seed):
            callers.make(move)
            after(callers, move)
        callers.finish(seed)
    except Exception as error:
        error.add_note(f"the history is number {seed}")
        raise
    finally:
        callers.close()


@pytest.mark.parametrize("chunk", range(40))
def test_what_callers_do_alone_is_nobody_elses(tmp_path: Path, chunk: int) -> None:
    for seed in range(chunk * _TOGETHER, (chunk + 1) * _TOGETHER):
        _play(tmp_path, seed)


@pytest.mark.parametrize("chunk", some(range(40), 8))
def test_an_edit_beside_callers_is_never_lost(tmp_path: Path, chunk: int) -> None:
    def edit(callers: Callers, move: Move) -> None:
        if move[1] % 9 == 0:
            callers.edit(move[2])

    for seed in range(chunk * _TOGETHER, (chunk + 1) * _TOGETHER):
        _play(tmp_path, seed, edit)


_ONCE_REFUSED: dict[str, list[Move]] = {
    "another step replaced what a denied one had made": [
        ("start", 0, 0, 0), ("start", 0, 0, 0), ("start", 0, 0, 0), ("rename", 1, 2, 0), ("save", 2, 2, 0),
        ("save", 1, 2, 0), ("exit", 1, 0, 0), ("deny", 1, 5, 0),
    ],
    "another step removed what a denied one had made": [
        ("start", 0, 0, 0), ("start", 0, 0, 0), ("start", 0, 0, 0), ("rename", 0, 1, 3), ("write", 1, 1, 0),
        ("unlink", 0, 1, 0), ("exit", 0, 0, 0), ("deny", 0, 3, 0),
    ],
    "another step wrote to what a denied one still has open": [
        ("start", 0, 0, 0), ("start", 0, 0, 0), ("start", 0, 0, 0), ("truncate", 0, 1, 3), ("write", 1, 1, 4),
        ("exit", 1, 0, 1), ("finish", 0, 0, 2), ("open", 0, 1, 2), ("deny", 0, 1, 0),
    ],
    "another step removed a link that a denied one had made": [
        ("start", 0, 0, 0), ("link", 0, 0, 7), ("fork", 0, 0, 0), ("start", 0, 0, 0), ("unlink", 2, 7, 0),
        ("exit", 2, 0, 2), ("deny", 0, 1, 0),
    ],
    "a directory that was exchanged meanwhile is exchanged back": [
        ("start", 0, 0, 0), ("unlink", 0, 3, 0), ("begin", 0, 0, 0), ("exchange_directories", 0, 0, 1),
        ("exit", 0, 0, 0), ("commit", 0, 0, 0),
    ],
    "what is still open lies in a directory that was moved": [
        ("start", 0, 0, 0), ("open", 0, 7, 1), ("start", 0, 0, 1), ("save", 1, 3, 0), ("pause", 0, 0, 0),
        ("rename_directory", 1, 1, 3), ("pause", 1, 0, 0), ("undo", 0, 0, 1),
    ],
    "what is still open has another name": [
        ("start", 0, 0, 0), ("open", 0, 5, 0), ("unlink", 0, 5, 0), ("start", 0, 0, 1), ("exit", 0, 0, 2),
        ("write_late", 0, 0, 1), ("undo", 0, 1, 1),
    ],
    "what is still open lost its name and is written to after an undo": [
        ("start", 0, 0, 0), ("fork", 0, 0, 0), ("open", 1, 5, 2), ("start", 1, 0, 1), ("exit", 0, 0, 2),
        ("clear", 0, 0, 0), ("exit", 1, 0, 1), ("pause", 0, 0, 0), ("undo", 0, 1, 1), ("write_late", 0, 0, 131),
    ],
    "what is still open is moved by several steps": [
        ("start", 0, 0, 0), ("start", 1, 0, 0), ("clear", 0, 1, 0), ("fork", 1, 0, 0), ("open", 2, 4, 1),
        ("rename_directory", 0, 2, 1), ("rename_directory", 2, 0, 3), ("pause", 1, 0, 0), ("rename_directory", 1, 1, 0),
    ],
    "what is still open was replaced by another step": [
        ("start", 0, 0, 0), ("open", 0, 5, 0), ("pause", 0, 0, 0), ("save", 0, 5, 0), ("start", 0, 0, 1),
        ("clear", 1, 0, 0), ("exit", 0, 0, 0), ("write_late", 0, 0, 849), ("pause", 0, 0, 0), ("undo", 0, 1, 3),
    ],
    "a step described what another one brings to where it removed something": [
        ("start", 0, 0, 0), ("start", 0, 0, 0), ("unlink", 1, 3, 0), ("utime", 1, 2, 0),
        ("exchange_directories", 0, 0, 1),
    ],
    "what is still open lies in a directory that is moved again": [
        ("start", 0, 0, 0), ("exchange_directories", 0, 0, 1), ("exit", 0, 0, 0), ("undo", 0, 0, 0), ("start", 0, 0, 0),
        ("open", 0, 3, 1), ("deny", 0, 4, 0), ("redo", 0, 0, 1), ("redo", 0, 0, 0),
    ],
    "what is still open was moved, and its step made a file in its place": [
        ("start", 0, 0, 0), ("fork", 0, 0, 0), ("start", 0, 0, 0), ("open", 1, 5, 2), ("rename", 2, 5, 7),
        ("pause", 2, 0, 0), ("write", 1, 5, 2), ("pause", 1, 0, 0), ("rename_directory", 2, 1, 3),
    ],
    "a directory from which a redone step had removed a file comes back": [
        ("start", 0, 0, 0), ("unlink", 0, 4, 0), ("exchange_directories", 0, 0, 1), ("exit", 0, 0, 0),
        ("start", 0, 0, 0), ("undo", 0, 0, 1), ("exchange_directories", 0, 1, 0), ("save", 0, 4, 0),
    ],
    "a directory with what a denied step has open takes the place of one that was removed": [
        ("start", 0, 0, 0), ("save", 0, 3, 0), ("pause", 0, 0, 0), ("start", 0, 0, 0), ("fork", 0, 0, 0),
        ("open", 0, 3, 2), ("deny", 0, 3, 0), ("clear", 1, 0, 0), ("rename_directory", 1, 1, 0),
    ],
    "a denied step had made what another one put in place of a file": [
        ("start", 0, 0, 0), ("start", 0, 0, 0), ("write", 0, 6, 2), ("rename", 1, 6, 0), ("unlink", 0, 0, 0),
        ("deny", 0, 2, 0),
    ],
    "another step wrote to what a denied one had made": [
        ("start", 0, 0, 0), ("start", 0, 0, 0), ("save", 1, 6, 2), ("write", 0, 6, 2), ("save", 1, 6, 5),
        ("exit", 0, 0, 1), ("deny", 0, 6, 0),
    ],
    "a step moved a file that lies in an exchanged directory by its end": [
        ("start", 0, 0, 0), ("write", 584, 298, 188), ("start", 962, 542, 370), ("start", 519, 493, 890),
        ("exit", 591, 633, 659), ("rename", 798, 298, 315), ("exchange_directories", 65, 633, 298),
    ],
    "two steps exchanged directories and one moved them on": [
        ("start", 0, 0, 0), ("start", 929, 894, 566), ("exchange_directories", 762, 541, 260),
        ("exchange_directories", 335, 458, 769), ("start", 638, 412, 860), ("rename_directory", 51, 753, 769),
        ("exit", 111, 860, 84), ("undo", 424, 951, 180),
    ],
    "an undo brings a file into a directory that is exchanged with it": [
        ("start", 0, 0, 0), ("rename", 282, 850, 491), ("start", 277, 829, 557), ("deny", 242, 491, 850),
        ("start", 714, 850, 491), ("start", 447, 850, 247), ("rename", 731, 891, 944), ("start", 55, 491, 491),
        ("exchange_directories", 429, 850, 693), ("rename", 473, 491, 15),
    ],
    "a step came while an earlier one was undone": [
        ("start", 0, 0, 0), ("unlink", 417, 749, 308), ("exit", 326, 525, 184), ("start", 263, 202, 202),
        ("start", 446, 202, 763), ("exit", 357, 424, 202), ("undo", 55, 202, 760), ("open", 857, 813, 979),
        ("exit", 762, 202, 202), ("undo", 359, 783, 202), ("redo", 746, 709, 645), ("redo", 215, 202, 202),
    ],
    "a step went on while one before it was undone": [
        ("start", 0, 0, 0), ("unlink", 931, 704, 330), ("start", 530, 704, 907), ("mkdir", 109, 704, 767),
        ("exit", 736, 2, 730), ("undo", 186, 704, 324), ("save", 888, 704, 704), ("exit", 707, 704, 10),
        ("undo", 901, 704, 656), ("redo", 804, 704, 704),
    ],
    "what a step beside it still has open lies in a directory that is moved": [
        ("start", 0, 0, 0), ("open", 154, 943, 389), ("start", 307, 665, 666), ("start", 257, 853, 219),
        ("unlink", 206, 535, 952), ("open", 593, 535, 118), ("pause", 488, 931, 853), ("pause", 642, 931, 735),
        ("exchange_directories", 575, 765, 952),
    ],
    "a step is brought forward while another one has exchanged its directory": [
        ("start", 0, 0, 0), ("exchange_directories", 391, 295, 924), ("exit", 222, 808, 336), ("start", 972, 924, 982),
        ("undo", 874, 295, 426), ("clear", 84, 924, 420), ("fork", 236, 295, 172), ("deny", 73, 808, 924),
        ("redo", 276, 808, 217), ("redo", 56, 295, 91),
    ],
    "an undo that is refused while a directory is exchanged": [
        ("start", 0, 0, 0), ("fork", 152, 94, 592), ("exit", 233, 626, 422), ("exchange_directories", 240, 94, 480),
        ("start", 639, 762, 317), ("fork", 75, 626, 296), ("start", 558, 976, 550), ("start", 992, 626, 456),
        ("mkdir", 10, 232, 943), ("exchange_directories", 746, 978, 262), ("pause", 80, 978, 424),
        ("undo", 321, 304, 83),
    ],
    "a rolled-back step had exchanged directories that one beside it had worked in": [
        ("start", 0, 0, 0), ("chmod", 386, 456, 940), ("start", 952, 170, 170), ("start", 466, 564, 968),
        ("unlink", 564, 571, 571), ("begin", 159, 170, 555), ("start", 964, 887, 170), ("exit", 761, 883, 264),
        ("rename", 553, 781, 178), ("exchange_directories", 872, 555, 571), ("exit", 309, 571, 264),
        ("commit", 203, 571, 699),
    ],
    "a rolled-back step had made and removed what one beside it saw at its end": [
        ("start", 0, 0, 0), ("start", 393, 768, 415), ("unlink", 231, 525, 996), ("start", 10, 525, 532),
        ("mkfifo", 206, 525, 667), ("exit", 583, 525, 464), ("unlink", 603, 525, 525), ("deny", 731, 929, 532),
    ],
    "another step removed a name of what one still writes to": [
        ("start", 0, 0, 0), ("start", 238, 496, 496), ("fork", 297, 496, 228), ("open", 222, 496, 974),
        ("exit", 268, 496, 303), ("unlink", 475, 496, 429), ("exit", 617, 496, 733), ("pause", 904, 228, 496),
        ("undo", 214, 496, 434), ("write_late", 936, 496, 218),
    ],
    "a directory was exchanged before it was known what a step had left in it": [
        ("start", 0, 0, 0), ("open", 316, 979, 486), ("start", 806, 979, 979), ("exit", 182, 606, 979),
        ("change_open", 990, 979, 979), ("exchange_directories", 26, 979, 432), ("exit", 316, 979, 554),
        ("restart", 267, 979, 979), ("start", 371, 979, 343), ("open", 412, 979, 833),
    ],
    "a directory was exchanged before it was known what a step had left in it, and another had removed": [
        ("start", 0, 0, 0), ("open", 316, 979, 486), ("pause", 398, 979, 257), ("unlink", 577, 979, 434),
        ("exchange_directories", 26, 979, 432), ("restart", 267, 979, 979), ("start", 371, 979, 343),
        ("open", 412, 979, 833),
    ],
}  # fmt: skip


@pytest.mark.parametrize("kind", ["replaced", "removed"])
def test_what_a_denied_step_had_made_and_another_took_away_lies_aside(tmp_path: Path, kind: str) -> None:
    callers = Callers(tmp_path)
    try:
        for move in _ONCE_REFUSED[f"another step {kind} what a denied one had made"]:
            callers.make(move)
        aside = [path.read_bytes() for path in (tmp_path / "log/aside").iterdir()]
        assert aside == [{"replaced": b"saved 0", "removed": b"0"}[kind]]
    finally:
        callers.close()


def test_an_original_is_not_lost_with_a_link_that_a_denied_step_had_made(tmp_path: Path) -> None:
    callers = Callers(tmp_path)
    try:
        linked: list[Move] = [("link", 0, 1, 7), ("unlink", 1, 1, 0), ("unlink", 1, 7, 0), ("exit", 1, 0, 1)]
        for move in [("start", 0, 0, 0)] * 3 + linked + [("deny", 0, 2, 0)]:
            callers.make(move)
        callers.finish(0)
    finally:
        callers.close()


@pytest.mark.parametrize("way", [0, 1, 2])
@pytest.mark.parametrize("name", _ONCE_REFUSED)
def test_nothing_is_taken_for_an_outsiders_where(tmp_path: Path, name: str, way: int) -> None:
    callers = Callers(tmp_path)
    try:
        for move in _ONCE_REFUSED[name]:
            callers.make(move)
        callers.finish(way)
    finally:
        callers.close()


def test_what_an_undo_could_not_take_back_is_not_blamed_on_another_process(tmp_path: Path) -> None:
    callers = Callers(tmp_path)
    try:
        denied: list[Move] = [("open", 0, 2, 2), ("rename", 1, 2, 1), ("rename", 2, 3, 2), ("utime", 0, 2, 0)]
        for move in [("start", 0, 0, 0)] * 3 + denied + [("deny", 1, 2, 0)]:
            callers.make(move)
        callers.finish(0)
        with pytest.raises(RefusedError, match="steps 1 and 3 could not be undone whole: d/y stayed as it was"):
            callers.service.redo([1, 3])
    finally:
        callers.close()
