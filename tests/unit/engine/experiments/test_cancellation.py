"""Signals that cancel what runs on other threads."""

from __future__ import annotations

import os
import signal

import pytest

from holdfast.engine.experiments.cancellation import cancelled_by_signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_sets_the_event_and_the_first_one_is_told(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with cancelled_by_signals() as cancelling:
        assert not cancelling.event.is_set()
        os.kill(os.getpid(), number)
        assert cancelling.event.wait(30)
        os.kill(os.getpid(), signal.SIGTERM)
    assert cancelling.signal == number
    assert signal.getsignal(number) == before


def test_without_a_signal_nothing_is_set() -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    with cancelled_by_signals() as cancelling:
        pass
    assert (cancelling.event.is_set(), cancelling.signal) == (False, 0)
    assert len(os.listdir("/proc/self/fd")) == descriptors
