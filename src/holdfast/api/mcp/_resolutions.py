"""The client's decisions about files that both sides of a merge have changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.api._request_arguments import path_in
from holdfast.api.mcp._text_content import decode_text
from holdfast.engine.merging.stacked_plan import Resolution
from holdfast.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.api.mcp._tool_arguments import FileResolution
    from holdfast.engine.hosting.working_directory import HostedDirectory


def resolutions(hosted: HostedDirectory, given: Sequence[FileResolution]) -> dict[bytes, Resolution]:
    """The decisions, by path. Raises `UsageError`."""
    found: dict[bytes, Resolution] = {}
    for one in given:
        path = path_in(hosted.path, one.path)
        if path in found:
            raise UsageError(f"{one.path} is decided twice", code="bad_arguments")
        if (one.use == "content") != (one.content is not None):
            raise UsageError(f"{one.path}: content goes with use content, and with nothing else", code="bad_arguments")
        content = None if one.content is None else decode_text(one.content, one.encoding)
        prefer = "ours" if one.use == "ours" else "theirs" if one.use == "theirs" else None
        found[path] = Resolution(prefer, content, one.version)
    return found
