"""How a client proves to a keeper that no keeper supervises it: with two descriptors.

Ancestors, process groups and sessions can be shed, and who was below what cannot be found out when that has ended. So
what counts is what a process can make, which says what it is. It is shown with each request, on the connection, and not
kept.

- The log's lock, open for writing: what was ever in a tree *of this keeper* can open nothing of the log for writing.
  While the keeper lives that is refused, and afterwards the tree's filter and its domain let it open nothing for
  writing at all. The tree of another keeper, of which this log is no business, might open it.
- A Landlock rule set: the filter of *every* tree, of whichever keeper, refuses to make one, and no keeper makes one for
  another. Where a kernel has no Landlock, no process can show one, and the first has to do. What others use to shut
  programs in (containers, sandboxes) lets rule sets be made, since these only ever take rights away.

Sources: unix(7), ``SCM_RIGHTS``; fcntl(2), ``F_GETFL``; landlock_create_ruleset(2).
"""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from fcntl import F_GETFL, fcntl
from typing import TYPE_CHECKING

from holdfast.supervisor.confinement import landlock
from holdfast.undo.journal.log_ownership import LOCK

if TYPE_CHECKING:
    from collections.abc import Generator


@contextmanager
def make_proof(log: bytes) -> Generator[list[int]]:
    """What to send first with a request to the keeper of the log in ``log``; empty for who cannot write there."""
    with ExitStack() as opened:
        proof: list[int] = []
        try:
            # (Nothing is locked by it: that the keeper has done.)
            proof.append(os.open(os.path.join(log, LOCK), os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW))
        except OSError:
            yield proof
            return
        opened.callback(os.close, proof[0])
        if (ruleset := landlock.make_ruleset()) is not None:
            opened.callback(os.close, ruleset)
            proof.append(ruleset)
        yield proof


def take_proof(fds: list[int], log: bytes) -> bool:
    """Whether descriptors that came with a request begin with what `make_proof` gives for the log, or with as much of
    it as this kernel has. What belongs to it is closed, and taken out of the list. For the log's keeper.
    """
    if not (fds and _is_lock(fds[0], log)):
        return False
    os.close(fds.pop(0))
    if fds and landlock.is_ruleset(fds[0]):
        os.close(fds.pop(0))
        return True
    return not landlock.version()


def _is_lock(fd: int, log: bytes) -> bool:
    flags = fcntl(fd, F_GETFL)
    return (
        flags & os.O_ACCMODE in (os.O_WRONLY, os.O_RDWR)
        and not flags & os.O_PATH
        and os.path.samestat(os.fstat(fd), os.lstat(os.path.join(log, LOCK)))
    )
