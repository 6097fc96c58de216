"""What an error tells besides its words, the same for every face."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.engine.encoding import undo
from holdfast.model.errors import HoldfastError

if TYPE_CHECKING:
    from collections.abc import Generator

    from holdfast.engine.hosting.working_directory import HostedDirectory

_SHOWN_BARRIERS = 20


@contextmanager
def telling(hosted: HostedDirectory) -> Generator[None]:
    """In this block errors get what there is to say of them: one by edits of others, the latest of those."""
    try:
        yield
    except HoldfastError as error:
        if error.code == "barrier":
            with hosted.undo_log() as log:
                latest = () if log is None else log.barriers()[-_SHOWN_BARRIERS:]
            error.data = {**undo.barriers(latest), **(error.data or {})}
        raise
