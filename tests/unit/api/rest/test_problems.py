"""Errors as HTTP has them."""

from __future__ import annotations

import pytest

from holdfast.api.rest._problems import problem, status_of
from holdfast.model.errors import (
    HoldfastError,
    LockedError,
    NotFoundError,
    QuotaError,
    RefusedError,
    StorageError,
    UsageError,
)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UsageError("x"), 400),
        (NotFoundError("x"), 404),
        (LockedError("x"), 409),
        (RefusedError("x"), 409),
        (QuotaError("x"), 507),
        (StorageError("x"), 503),
        (HoldfastError("x"), 500),
    ],
)
def test_every_error_has_a_status(error: HoldfastError, status: int) -> None:
    assert problem(error, "r")["status"] == status


def test_the_hint_speaks_of_this_face() -> None:
    no_path = NotFoundError("x", hint="`holdfast show 1` lists the files", code="no_such_path")
    assert problem(no_path, "r")["hint"] == "GET /api/checkpoints/{id}/files lists the files of a checkpoint"
    assert problem(NotFoundError("x", hint="holdfast log lists the checkpoints"), "r")["hint"] is None
    assert problem(UsageError("x", hint="begin it with /"), "r")["hint"] == "begin it with /"


def test_of_a_mistake_nothing_is_told() -> None:
    assert "secret" not in str(problem(HoldfastError("a secret", code="bug"), "r"))


def test_a_full_disk_is_told_apart() -> None:
    error = StorageError("x")
    error.__cause__ = OSError(28, "No space left on device")
    assert status_of(error) == 507
