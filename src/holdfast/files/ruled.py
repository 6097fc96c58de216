"""A directory with the ignore rules that are in force in it, for looking at what they say without a scan."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.files.ignore import read_rule_files
from holdfast.model.named import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from holdfast.files.ignore import DirectoryRules

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Item(NamedTuple):
    """What lies in such a directory."""

    path: bytes
    """From the root."""
    is_directory: bool
    excluded: bool
    """By the rules."""
    entry: os.DirEntry[str]
    """To be asked while the directory is open."""


@contextmanager
def opened(root: bytes, path: bytes, above: DirectoryRules) -> Generator[tuple[DirectoryRules, Iterator[Item]]]:
    """The rules in the directory ``path`` below ``root``, and what it holds, in no order; ``above`` are its parent's.

    The directory itself is not opened through a link. Raises `OSError`, also while the items are gone through.
    """
    fd = os.open(os.path.join(root, path), _DIRECTORY)
    try:
        gitignore, own = read_rule_files(fd)
        rules = above.below(path, gitignore, own) if path else above.at_root(gitignore, own)
        with os.scandir(fd) as entries:
            yield rules, (_item(path, rules, entry) for entry in entries)
    finally:
        os.close(fd)


def _item(path: bytes, rules: DirectoryRules, entry: os.DirEntry[str]) -> Item:
    name = os.fsencode(entry.name)
    inner = path + b"/" + name if path else name
    is_directory = entry.is_dir(follow_symlinks=False)
    return Item(inner, is_directory, rules.excluded(inner, name, is_directory), entry)
