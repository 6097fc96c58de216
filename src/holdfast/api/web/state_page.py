"""A state: the entries of a directory in it, or a file as text, image, or a note."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.api.web.diff_page import NOTHING, NOW
from holdfast.api.web.file_kinds import MOST_RAW_BYTES, image_type, may_be_image, raw_type
from holdfast.api.web.highlight import line_html, pieces, text_lines
from holdfast.api.web.words import lines_text, moment, path_text, short
from holdfast.engine.diffs.git_patch import is_binary
from holdfast.model.errors import RefusedError
from holdfast.model.message_text import first_line, size, visible
from holdfast.model.timeline import prompt_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markupsafe import Markup

    from holdfast.api.web.addresses import Addresses, Query
    from holdfast.api.web.words import Moment
    from holdfast.engine.diffs.line_origins import LineOrigin
    from holdfast.engine.workspace.workspace import Workspace
    from holdfast.model.entries import Entry

_MOST_TEXT_BYTES: Final = 1 << 20
_MOST_LISTED: Final = 5000
_MOST_OF_LINE: Final = 240


class Crumb(NamedTuple):
    """A parent directory of the shown path."""

    name: str
    address: str


class Listed(NamedTuple):
    """An entry of a directory."""

    name: str
    kind: str
    """``directory``, ``file``, ``link``"""
    size: str
    files: int
    mode: str
    address: str


class Origin(NamedTuple):
    """A change that lines of a file come from."""

    number: int
    """By which its lines refer to it; from 1."""
    at: Moment
    author: str
    said: str
    """The message or the command of the state; empty where the prompt or the steps say more."""
    state: str
    short: str
    changes: str
    """The address of its changes to the file."""
    steps: Sequence[Crumb]
    asked: str
    """The prompt before it, in one line."""
    before_prompt: str
    """The address of the page that goes back to before that prompt."""
    lines: int


class Lines(NamedTuple):
    """Where the lines of a file come from."""

    origins: Sequence[Origin]
    of_lines: Sequence[Origin | None]
    """For each line; None for one that is older than all examined versions."""
    limit: str
    """Why older versions were not examined; empty if all that matter were."""


class State(NamedTuple):
    """The page of a state."""

    name: str
    short: str
    labels: Sequence[str]
    at: Moment
    author: str
    message: str
    kind: str
    total: str
    crumbs: Sequence[Crumb]
    path: str
    path_query: bytes
    """The path as an address says it."""
    items: Sequence[Listed]
    more: int
    """Items that are not in the list."""
    is_directory: bool
    view: str
    """Of a file: ``text``, ``image``, ``binary``, ``large``, ``link``"""
    lines: Sequence[Markup]
    size: str
    mode: str
    target: str
    """Of a link."""
    raw: str
    history: str
    """Rows of the timeline that changed the shown path."""
    changes: str
    """The difference that made this state."""
    to_now: str
    origins: Lines | None
    """The origin of each line, for a text, on request."""
    other_view: str
    """Of a text: the address of the page with the origins of its lines, or of the one without."""


def state(workspace: Workspace, addresses: Addresses, name: str, query: Query) -> State:
    """The directory or file at the path of ``query`` in a state. Raises `NotFoundError`."""
    path = query.path("path")
    place = workspace.browse(name, path)
    checkpoint = place.checkpoint

    def address(below: bytes) -> str:
        return addresses.page(f"state/{checkpoint.id}", path=below)

    parts = path.split(b"/") if path else []
    about = checkpoint.provenance
    found = State(
        name=checkpoint.id,
        short=short(checkpoint.id),
        labels=[visible(label) for label in checkpoint.labels],
        at=moment(checkpoint.created_at),
        author=visible(about.author),
        message=lines_text(about.message or about.command),
        kind=checkpoint.kind,
        total=f"{checkpoint.total_files:,} {'file' if checkpoint.total_files == 1 else 'files'}, "
        f"{size(checkpoint.total_bytes)}",
        crumbs=[Crumb(path_text(part), address(b"/".join(parts[: at + 1]))) for at, part in enumerate(parts)],
        path=path_text(path),
        path_query=path,
        items=[],
        more=0,
        is_directory=place.entry is None,
        view="",
        lines=[],
        size="",
        mode="",
        target="",
        raw="",
        history=addresses.page("", path=path),
        changes=addresses.page("diff", from_=checkpoint.parent or NOTHING, to=checkpoint.id),
        to_now=addresses.page("diff", from_=checkpoint.id, to=NOW, path=path),
        origins=None,
        other_view="",
    )
    if place.entry is not None:
        found = _file(workspace, addresses, found, path, place.entry)
        if "text" not in found.view:
            return found
        if query.choice("lines", ("", "yes")) != "yes":
            return found._replace(other_view=addresses.page(f"state/{found.name}", path=path, lines="yes"))
        return found._replace(other_view=address(path), origins=_origins(workspace, addresses, found.name, path))
    items = [
        Listed(
            name=path_text(item.name),
            kind="directory" if item.entry is None else "link" if item.entry.is_symlink else "file",
            size=size(item.size),
            files=item.files,
            mode="" if item.entry is None else f"{item.entry.permissions:o}",
            address=address(path + b"/" + item.name if path else item.name),
        )
        for item in place.items[:_MOST_LISTED]
    ]
    return found._replace(items=items, more=len(place.items) - len(items))


def _file(workspace: Workspace, addresses: Addresses, found: State, path: bytes, entry: Entry) -> State:
    found = found._replace(size=size(entry.size), mode=f"{entry.permissions:o}")
    if entry.is_symlink:
        return found._replace(view="link", target=path_text(b"".join(workspace.cat(found.name, path))))
    raw = addresses.page(f"raw/{found.name}", path=path)
    found = found._replace(raw=raw)
    if entry.size > (MOST_RAW_BYTES if may_be_image(path) else _MOST_TEXT_BYTES):
        return found._replace(view="large")
    content = b"".join(workspace.cat(found.name, path))
    kind = image_type(path, content)
    if kind is not None and kind != "image/svg+xml":
        return found._replace(view="image")
    if is_binary(content):
        return found._replace(view="binary")
    if len(content) > _MOST_TEXT_BYTES:
        return found._replace(view="large")
    lines = [line_html(line) for line in pieces(path, text_lines(content))]
    return found._replace(view="text" if kind is None else "image and text", lines=lines)


def _origins(workspace: Workspace, addresses: Addresses, name: str, path: bytes) -> Lines:
    found = workspace.line_origins(name, path)
    origins = [_origin(addresses, number, one) for number, one in enumerate(found.origins, 1)]
    return Lines(origins, [None if at is None else origins[at] for at in found.of_lines], found.limit)


def _origin(addresses: Addresses, number: int, origin: LineOrigin) -> Origin:
    made, about = origin.checkpoint, origin.checkpoint.provenance
    message = "" if prompt_of(about.message) is not None else about.message
    # The message of a run says only that it has ended.
    said = ", ".join(filter(None, (*made.labels, about.command or message)))
    return Origin(
        number=number,
        at=moment(made.created_at),
        author=visible(about.author),
        said=_line(said),
        state=addresses.page(f"state/{made.id}", path=origin.path),
        short=short(made.id),
        changes=addresses.page("diff", from_=made.parent or NOTHING, to=made.id, path=origin.path),
        steps=[Crumb(str(step.id), addresses.page(f"step/{step.id}")) for step in origin.steps],
        asked=_line(origin.asked),
        before_prompt="" if origin.prompt is None else addresses.page("act/undo", to=origin.prompt),
        lines=origin.lines,
    )


def _line(text: str) -> str:
    """A text in one line, with a mark for omitted characters."""
    line = visible(first_line(text, _MOST_OF_LINE))
    return line if line == text.strip() or line.endswith("…") else f"{line} …"


def raw(workspace: Workspace, name: str, path: bytes) -> tuple[bytes, str]:
    """A file as it is, and the media type that it is served with. Raises `NotFoundError`, `RefusedError` for one that
    is too large, and `EscapeError` for a path that leads out of the tree.
    """
    if name == NOW:
        from holdfast.engine.diffs.file_browser import read_file

        read = read_file(workspace.path, path, own=(workspace.home,), limit=MOST_RAW_BYTES)
        if read.size > MOST_RAW_BYTES:
            raise _too_large(path, read.size)
        return read.content, raw_type(path, read.content)
    entry = workspace.browse(name, path).entry
    if entry is None or entry.is_symlink:
        raise RefusedError(f"{path_text(path) or '.'} is no file in {short(name)}", code="not_a_file")
    if entry.size > MOST_RAW_BYTES:
        raise _too_large(path, entry.size)
    content = b"".join(workspace.cat(name, path))
    return content, raw_type(path, content)


def _too_large(path: bytes, number: int) -> RefusedError:
    return RefusedError(
        f"{path_text(path)} has {size(number)}: the page shows files up to {size(MOST_RAW_BYTES)}",
        hint="`holdfast cat ID:PATH` prints any file",
        code="too_large",
    )
