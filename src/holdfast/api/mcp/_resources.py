"""Checkpoints as resources: ``holdfast://checkpoints/ID``, and the files in them, ``holdfast://checkpoints/ID/PATH``."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote, unquote_to_bytes

import mcp_types as types

from holdfast.api._truncated_results import cut
from holdfast.api.mcp._pagination import page
from holdfast.api.mcp._shared_host import recorded_directories
from holdfast.api.mcp._tool_results import SHOWN
from holdfast.model.answers.workspace import CheckpointDetails
from holdfast.model.clock import isoformat
from holdfast.model.errors import NotFoundError, RefusedError
from holdfast.model.json_encoder import encode
from holdfast.model.message_text import plural
from holdfast.model.paths import display

if TYPE_CHECKING:
    from holdfast.api.mcp._shared_host import SharedHost
    from holdfast.engine.workspace.workspace import Workspace
    from holdfast.model.checkpoint import Checkpoint
    from holdfast.model.command_results import Details

ROOT: Final = "holdfast://checkpoints/"
MOST_FILE: Final = 1 << 20
"""Bytes of a file that is read as a resource."""
_PAGE = 100
_MOST_URI = 20_000

TEMPLATES = (
    types.ResourceTemplate(
        name="checkpoint",
        title="A checkpoint",
        uri_template=f"{ROOT}{{id}}",
        description="A saved state, by its id or any other name",
        mime_type="application/json",
    ),
    types.ResourceTemplate(
        name="checkpoint-file",
        title="A file in a checkpoint",
        uri_template=f"{ROOT}{{id}}/{{+path}}",
        description="A file as it was saved",
    ),
)


class ResourceAddress(NamedTuple):
    """The parts of a resource's URI."""

    checkpoint: str
    path: bytes | None


def parse_uri(uri: str) -> ResourceAddress:
    """Take a URI apart. Raises `NotFoundError` for one that names nothing here."""
    name, slash, path = uri.removeprefix(ROOT).partition("/")
    try:
        checkpoint = unquote_to_bytes(name).decode()
    except UnicodeDecodeError:
        checkpoint = ""
    if not uri.startswith(ROOT) or len(uri) > _MOST_URI or not checkpoint or (slash and not path):
        raise NotFoundError(f"{uri[:200]!r} is no resource", hint=f"{ROOT}ID or {ROOT}ID/PATH", code="no_resource")
    return ResourceAddress(checkpoint, unquote_to_bytes(path) if slash else None)


def list_checkpoints(host: SharedHost, cursor: str | None) -> types.ListResourcesResult:
    """A page of the checkpoints of all directories, newest first."""
    found: list[Checkpoint] = []
    for hosted in recorded_directories(host):
        with hosted.workspace() as workspace:
            found += workspace.log().checkpoints
    shown, following = page(found, lambda each: str(each.id), "resources", cursor, str, _PAGE)
    return types.ListResourcesResult(resources=[_resource(each) for each in shown], next_cursor=following)


def read(host: SharedHost, uri: str) -> types.ReadResourceResult:
    """The content of a resource. Raises `NotFoundError`, `RefusedError` (``too_large``)."""
    address = parse_uri(uri)
    failure: NotFoundError | None = None
    for hosted in recorded_directories(host):
        with hosted.workspace() as workspace:
            try:
                workspace.resolve(address.checkpoint)
            except NotFoundError as error:
                failure = failure or error
                continue
            return types.ReadResourceResult(contents=[_content(workspace, address, uri)])
    raise failure or NotFoundError("there are no checkpoints here")


def _resource(checkpoint: Checkpoint) -> types.Resource:
    made = isoformat(checkpoint.created_at)
    return types.Resource(
        name=str(checkpoint.id),
        title=", ".join(checkpoint.labels) or f"{checkpoint.kind} {made}",
        uri=f"{ROOT}{quote(checkpoint.id, safe='')}",
        description=f"{checkpoint.kind}, {made}, {plural(checkpoint.total_files, 'file')}",
        mime_type="application/json",
    )


def _content(
    workspace: Workspace, address: ResourceAddress, uri: str
) -> types.TextResourceContents | types.BlobResourceContents:
    if address.path is None:
        text = json.dumps(_details(workspace.show(address.checkpoint)))
        return types.TextResourceContents(uri=uri, mime_type="application/json", text=text)
    content = bytearray()
    for piece in workspace.cat(address.checkpoint, address.path):
        content += piece
        if len(content) > MOST_FILE:
            raise RefusedError(
                f"{display(address.path)} is larger than {MOST_FILE} bytes",
                hint="restore it, or fork the checkpoint, and read it there",
                code="too_large",
            )
    try:
        return types.TextResourceContents(uri=uri, mime_type="text/plain", text=content.decode())
    except UnicodeDecodeError:
        blob = base64.b64encode(content).decode()
        return types.BlobResourceContents(uri=uri, mime_type="application/octet-stream", blob=blob)


def _details(found: Details) -> dict[str, Any]:
    value = encode(CheckpointDetails, found.checkpoint, not_captured=found.not_captured, paths=found)
    paths = cut(value["paths"], "added", "modified", "deleted", most=SHOWN)
    return cut(value, "not_captured", most=SHOWN) | {"paths": paths}
