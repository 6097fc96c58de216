"""What is posted to the keeper's serving thread, while that does what was posted before."""

from __future__ import annotations

import os
import select

from holdfast.supervisor.keeper._background_thread import BackgroundThread


def test_what_is_posted_without_end_leaves_room_for_all_else() -> None:
    thread = BackgroundThread()
    called: list[int] = []

    def again() -> None:
        called.append(len(called))
        if len(called) < 100:  # (else this would never end)
            thread.post(again)

    thread.post(again)
    for turn in range(1, 4):
        assert select.select([thread.wake_fd], [], [], 0)[0], "there is more to do"
        thread.settle()
        assert len(called) == turn
    os.close(thread.wake_fd)
