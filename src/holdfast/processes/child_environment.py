"""The environments of children: what commands of others get from this process, and what our own modules need."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, AnyStr

from holdfast.model.store_location import without_secrets

if TYPE_CHECKING:
    from collections.abc import Mapping

_CATALOG = "HOLDFAST_STORE_CATALOG"
_OF_ONE_REPOSITORY = frozenset(
    (
        "GIT_DIR",
        "GIT_WORK_TREE",
        "GIT_IMPLICIT_WORK_TREE",
        "GIT_COMMON_DIR",
        "GIT_INDEX_FILE",
        "GIT_OBJECT_DIRECTORY",
        "GIT_PREFIX",
        "GIT_ALTERNATE_OBJECT_DIRECTORIES",
        "GIT_SHALLOW_FILE",
        "GIT_GRAFT_FILE",
        "GIT_NAMESPACE",
        "GIT_QUARANTINE_PATH",
    )
)
"""The variables that Git sets for hooks and their children. Source: ``git rev-parse --local-env-vars``."""


def inherited_environment(environ: Mapping[AnyStr, AnyStr]) -> dict[AnyStr, AnyStr]:
    """The environment for other programs, as text or as bytes: all but the password of the catalog. Others can read the
    environment variables that a command prints, logs or reports.
    """
    given = dict(environ)
    for name, value in environ.items():
        if isinstance(name, str) and isinstance(value, str):
            if name == _CATALOG:
                given[name] = without_secrets(value)
        elif isinstance(name, bytes) and isinstance(value, bytes) and name == _CATALOG.encode():
            given[name] = without_secrets(value.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
    return given


def without_git_repository(environ: Mapping[str, str]) -> dict[str, str]:
    """The same without what leads Git to one repository, for a copy: started by a hook of Git's, commands in there
    would work in the user's.
    """
    return {name: value for name, value in environ.items() if name not in _OF_ONE_REPOSITORY}


def with_our_modules(environ: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """The same with a ``PYTHONPATH`` by which a child finds the modules that this process does."""
    return {**environ, b"PYTHONPATH": os.fsencode(os.pathsep.join(path for path in sys.path if path))}
