"""Whether an answer is taken: whoever gave it is not trusted to have kept to what was asked."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from holdfast.engine.diffs.git_patch import is_binary

if TYPE_CHECKING:
    from holdfast.engine.merging.reapply.port import Task

_MARKER = re.compile(rb"^(<{7}|>{7}|\|{7})(?= |\r?$)", re.MULTILINE)
"""What merges leave where they could not decide. (A line of equal signs alone is a heading in many texts.)"""


def refusal(task: Task, content: bytes | None, max_bytes: int) -> str | None:
    """Why ``content`` cannot be the answer to ``task``; None if it can.

    A file that is text in all its versions stays text, of the same encoding if that was UTF-8; no answer brings
    conflict markers that were not there; none is longer than ``max_bytes``; and a file is deleted only where a side has
    deleted it.
    """
    given = [one for one in (task.now, task.before, task.after) if one is not None]
    if content is None:
        deleted = task.now is None or task.after is None
        return None if deleted else "it deletes a file that neither side has deleted"
    if len(content) > max_bytes:
        return f"it has {len(content)} bytes, more than merge.max_bytes, {max_bytes}"
    if is_binary(content) and not any(map(is_binary, given)):
        return "it is no text, and the file was one"
    if not _is_utf8(content) and all(map(_is_utf8, given)):
        return "it is not UTF-8, and the file was"
    if _MARKER.search(content) and not any(map(_MARKER.search, given)):
        return "it has conflict markers"
    return None


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True
