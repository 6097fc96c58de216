"""The zstandard library, without the other imports of its package.

The package imports `platform`, and `typing` for one name: with `re` that takes ten milliseconds, a tenth of the time
for saving a hundred files, and the library itself half of one. So its C extension is loaded from the package's
directory, under its own name; if another module imports the package, that uses the same. The package's additions in
Python (`open`, `compress`, `decompress`) must not be used, though type checkers know them. Without such an extension,
or if the environment selects another, the package decides; and also with other threads, which may be importing it.
"""

from __future__ import annotations

import os
import sys

from holdfast.model.fast_typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

    import zstandard
else:
    zstandard: ModuleType
    """The library."""

__all__ = ["zstandard"]

_PACKAGE = "zstandard"
_EXTENSION = "zstandard.backend_c"
_POLICY = "PYTHON_ZSTANDARD_IMPORT_POLICY"
"""By this variable of the environment the package chooses."""


def _extension() -> ModuleType | None:
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    package = PathFinder.find_spec(_PACKAGE)
    if package is None or package.submodule_search_locations is None:
        return None
    found = PathFinder.find_spec(_EXTENSION, package.submodule_search_locations)
    if found is None or found.loader is None:
        return None
    module = sys.modules[_EXTENSION] = module_from_spec(found)
    try:
        found.loader.exec_module(module)
    except BaseException:
        del sys.modules[_EXTENSION]
        raise
    return module


def _is_alone() -> bool:
    """True if this process has one thread of Python's."""
    threading = sys.modules.get("threading")
    return threading is None or threading.active_count() == 1


def _load() -> ModuleType:
    if _PACKAGE in sys.modules or not _is_alone():  # Python has a thread wait for what another one has begun to load
        return __import__(_PACKAGE)
    loaded = sys.modules.get(_EXTENSION)
    if loaded is not None:
        return loaded
    if sys.implementation.name == "cpython" and _POLICY not in os.environ:
        try:
            found = _extension()
        except ImportError:
            found = None
        if found is not None:
            return found
    return __import__(_PACKAGE)


if not TYPE_CHECKING:
    zstandard = _load()
