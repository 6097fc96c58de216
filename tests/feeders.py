"""Who has the changes of a step recorded: an undo test that takes one runs unchanged over each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest

from holdfast.testing.bridged import BridgedActor
from holdfast.testing.tree_actor import InterceptedActor, TreeOperations
from holdfast.undo.journal.records import StepId
from holdfast.undo.log import UndoLog

from .fuse import ONLY_WITH_FUSE

Feeder: TypeAlias = Callable[[UndoLog, bytes, StepId, bytes], TreeOperations]


def straight(log: UndoLog, tree: bytes, step: StepId, below: bytes = b"") -> TreeOperations:
    """Through the interceptor, and nothing else."""
    return InterceptedActor(log.recorder, tree, step, below)


def over_fuse(log: UndoLog, tree: bytes, step: StepId, below: bytes = b"") -> TreeOperations:
    """Through the kernel, and a server of its protocol."""
    return BridgedActor(log, tree, step, below)


BOTH = [straight, pytest.param(over_fuse, marks=ONLY_WITH_FUSE)]
