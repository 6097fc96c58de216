"""File attributes that a checkpoint lacks, and a file system must have."""

from __future__ import annotations

from holdfast.model.fast_namedtuple import NamedTuple


class CheckpointAppearance(NamedTuple):
    """How the files of a mounted checkpoint look."""

    uid: int
    gid: int
    changed_at: int
    """Of everything, in microseconds since 1970."""
    root_permissions: int = 0o755
    permissions: int = 0o755
    """Of all other directories."""
