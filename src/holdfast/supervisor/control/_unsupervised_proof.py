"""A client's proof to a keeper that no keeper supervises it: two descriptors.

A process can leave its ancestors, process group and session, and its origin is unknown when those have ended. So the
proof is an ability: descriptors that a supervised process cannot make. It is sent with each request, on the connection,
and not kept.

- The log's lock, open for writing: a process that was ever in a tree *of this keeper* cannot open files of the log for
  writing. While the keeper lives that is refused, and afterwards the tree's filter and its domain refuse every opening
  for writing. A process in the tree of another keeper, which does not protect this log, might open it.
- A Landlock rule set: the filter of *every* tree, of any keeper, refuses to make one, and no keeper makes one for
  another process. On a kernel without Landlock, no process can show one, and the first must suffice. Other confinement
  (containers, sandboxes) permits rule sets, since these only ever remove rights.

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
    """The descriptors to send first with a request to the log's keeper; none if this process cannot write there."""
    with ExitStack() as opened:
        proof: list[int] = []
        try:
            # Not to lock it: the keeper holds the lock.
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
    """Whether the descriptors of a request begin with those of `make_proof` for the log, or the part that this kernel
    supports. They are closed, and removed from the list. For the log's keeper.
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
