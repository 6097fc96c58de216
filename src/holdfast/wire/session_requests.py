"""Requests to the process that has a session open: the body of a request, in a frame of `holdfast.ipc.messages`.

``{"agent": …, "hook": …, "ask": {"op": …, …}}`` in JSON, with the usual answers. With each request the caller proves
that it may write in the home, by a descriptor of the session's lock file, open for writing; or that it belongs to the
run of a command of the session, and sends one of `ADDING`. Pure: no I/O.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from holdfast.model.decoders import json_decoder
from holdfast.model.errors import FormatError

MAX_CALL_BYTES: Final = 1 << 16
"""Of the body."""
MAX_ANSWER_BYTES: Final = 1 << 20

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]
_Text = Annotated[str, msgspec.Meta(max_length=10_000)]


class PingRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="ping", forbid_unknown_fields=True):
    """Is a process there that answers? The answer is empty."""


class SaveRequest(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="checkpoint", forbid_unknown_fields=True
):
    """Save the state. The answer: ``checkpoint``, its hash."""

    message: _Text = ""
    automatic: bool = False
    """Only if there were changes since the last one."""
    resting: bool = False
    """Only if no command runs."""


class BranchRequest(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="branch", forbid_unknown_fields=True
):
    """Save the state under a name. The answer: ``ref``."""

    name: _Name
    message: _Text = ""


class RemoveBranchRequest(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="remove_branch", forbid_unknown_fields=True
):
    """Remove a branch. The answer: ``ref``, its former target."""

    name: _Name


class ForkRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="fork", forbid_unknown_fields=True):
    """Begin another session. The answer: ``id``, ``root``, ``fork_point``, ``ref``, ``provider`` and ``mode``."""

    id: _Name | None = None
    checkpoint: _Name | None = None
    with_ignored: bool = False
    provider: _Name | None = None
    on_branch: _Name | None = None


class ShareRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="share", forbid_unknown_fields=True):
    """Let another agent use it, or no more. The answer: ``shared``, all of them."""

    name: _Name
    remove: bool = False


SessionRequest = PingRequest | SaveRequest | BranchRequest | RemoveBranchRequest | ForkRequest | ShareRequest


ADDING = PingRequest | SaveRequest | BranchRequest | ForkRequest
"""Requests that add to the saved data, and remove none of it."""


class SessionCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One request."""

    ask: SessionRequest
    agent: _Name
    """Who asks. A name, no authentication."""
    hook: Annotated[str, msgspec.Meta(max_length=100)] = ""
    """The value of `HOLDFAST_HOOK`, if the caller is run by a hook."""
    run: Annotated[str, msgspec.Meta(max_length=100)] = ""
    """The value of ``HOLDFAST_RUN``, if the caller may not write in the home."""


def encode_call(call: SessionCall) -> bytes:
    """The body of a request. Raises `FormatError` if that is longer than `MAX_CALL_BYTES`, or a text is not UTF-8."""
    try:
        body = msgspec.json.encode(call)
    except UnicodeEncodeError as error:
        raise FormatError(f"a text that is not UTF-8 cannot be asked for: {error.reason}") from None
    if len(body) > MAX_CALL_BYTES:
        raise FormatError(f"the request is longer than {MAX_CALL_BYTES} bytes")
    return body


def decode_call(body: bytes) -> SessionCall:
    """The inverse of `encode_call`; raises `FormatError` naming the field for anything else."""
    try:
        return json_decoder(SessionCall).decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"this is no call: {error}") from None
