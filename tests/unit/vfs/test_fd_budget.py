"""How many files mounts may have open together."""

from __future__ import annotations

import resource
from contextlib import suppress

from holdfast.vfs.fd_budget import FdBudget, FdShare
from holdfast.vfs.file_system import TooManyError


def fill(share: FdShare) -> int:
    """How many more fit."""
    count = 0
    while True:
        try:
            with share.one_more():
                count += 1
        except TooManyError:
            return count


def test_one_mount_leaves_room_for_the_next_and_takes_what_was_given_back() -> None:
    room = FdBudget(100)
    one, other, third = room.share(), room.share(), room.share()
    assert (fill(one), fill(other), fill(third)) == (75, 19, 5)
    for _ in range(75):
        one.give()
    assert fill(other) > 0
    assert fill(third) > 0
    assert fill(one) > 0


def test_what_could_not_be_opened_takes_no_room() -> None:
    share = FdBudget(4).share()
    for _ in range(10):
        with suppress(PermissionError), share.one_more():
            raise PermissionError
    assert fill(share) == 3


def test_what_is_left_of_the_process_s_descriptors_is_not_for_files() -> None:
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert 0 < fill(FdBudget().share()) < most / 2
