"""The level of a command of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.engine.sessions.session import Session
    from holdfast.model.session import Level


def judge(session: Session, command: str, *, cwd: bytes, environment: Mapping[str, str]) -> Level:
    """What ``command`` may do, in the directory ``cwd`` with these variables (docs/guide/safety.md)."""
    from holdfast.engine.safety.classify import classify, levels_of

    programs = levels_of(session.context.settings.safety.programs)
    return classify(command, cwd=cwd, root=session.root, env=environment, programs=programs)
