"""How safe a command of a session is taken to be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.model.named import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.engine.sessions.session import Session
    from holdfast.model.session import Level


class Judged(NamedTuple):
    """What goes into the entry of a command."""

    level: Level
    reasons: tuple[str, ...]


def judge(session: Session, command: str, *, cwd: bytes, environment: Mapping[str, str]) -> Judged:
    """What ``command`` may do, in the directory ``cwd`` with these variables (docs/guide/safety.md)."""
    from holdfast.engine.safety.classes import levels_of
    from holdfast.engine.safety.classify import classify

    programs = levels_of(session.context.settings.safety.programs)
    found = classify(command, cwd=cwd, root=session.root, env=environment, programs=programs)
    return Judged(found.level, tuple(dict.fromkeys(reason.text for reason in found.reasons)))
