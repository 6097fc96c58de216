"""The routes: each borrows a workspace, has a page made of it, and puts that into its template.

Work is synchronous, in threads. A page that htmx asks for a part of is given that part alone; without JavaScript the
same address is a page of its own.
"""

from __future__ import annotations

import asyncio
import hashlib
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from litestar import MediaType, Request, Response, Router, get
from litestar.exceptions import HTTPException
from litestar.response import ServerSentEvent

from holdfast.api.web.addresses import Addresses, Query
from holdfast.api.web.diff_page import Differences, difference, file_view
from holdfast.api.web.file_kinds import SANDBOX
from holdfast.api.web.state_page import raw, state
from holdfast.api.web.timeline_page import KINDS, run, step, timeline
from holdfast.api.web.words import path_text
from holdfast.model.errors import (
    EscapeError,
    HoldfastError,
    NotFoundError,
    RefusedError,
    UnsupportedError,
    UsageError,
)
from holdfast.model.log import Log

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from holdfast.api.web.workspaces import Workspaces
    from holdfast.engine.workspace.workspace import Workspace
    from holdfast.model.clock import Clock

_LOG = Log(__name__)

_STATIC: Final = {
    "style.css": "text/css",
    "keys.js": "text/javascript",
    "icon.svg": "image/svg+xml",
    "vendor/htmx.min.js": "text/javascript",
    "vendor/htmx-sse.min.js": "text/javascript",
}
_STATUS: Final[tuple[tuple[type[HoldfastError], int], ...]] = (
    (EscapeError, 400),
    (UsageError, 400),
    (NotFoundError, 404),
    (RefusedError, 409),
    (UnsupportedError, 501),
)
LIVE_SECONDS: Final = 1.0
"""How often the history is looked at while a page is open."""


class WebFace(NamedTuple):
    """What the pages are made of, and for."""

    workspaces: Workspaces
    base: str
    """The path that all pages are below."""
    form_token: str
    clock: Clock
    ending: Callable[[], bool]
    """Whether the server is about to end: then no stream goes on."""


class _Static(NamedTuple):
    content: bytes
    kind: str


def _static_files() -> tuple[dict[str, _Static], str]:
    """The files, and what changes when one does."""
    folder = files("holdfast.api.web") / "static"
    found = {name: _Static((folder / name).read_bytes(), kind) for name, kind in _STATIC.items()}
    version = hashlib.blake2b(b"".join(one.content for one in found.values()), digest_size=6).hexdigest()
    return found, version


def _templates() -> Environment:
    return Environment(
        loader=PackageLoader("holdfast.api.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


class _Renderer:
    """Puts values into templates."""

    def __init__(self, face: WebFace, addresses: Addresses, version: str) -> None:
        self._templates = _templates()
        self._everywhere: dict[str, Any] = {
            "page": addresses.page,
            "version": version,
            "form_token": face.form_token,
            "kinds": KINDS,
            "base": face.base,
        }

    def page(self, template: str, workspace: Workspace, /, **values: Any) -> str:
        """A whole page."""
        path = path_text(workspace.path)
        return self._templates.get_template(template).render(
            self._everywhere, workspace_path=path, workspace_name=path.rpartition("/")[2] or path, **values
        )

    def part(self, template: str, /, **values: Any) -> str:
        """A page without a workspace, or a part of one."""
        return self._templates.get_template(template).render(self._everywhere, **values)


def _query(request: Request[Any, Any, Any]) -> Query:
    return Query(request.scope["query_string"])


def _is_part(request: Request[Any, Any, Any]) -> bool:
    """Whether htmx asks, which wants a part of a page."""
    return request.headers.get("hx-request") == "true"


def _html(content: str, status: int = 200) -> Response[str]:
    return Response(content, media_type=MediaType.HTML, status_code=status)


def web_router(face: WebFace) -> Router:
    """All routes below ``face.base``. To be served behind a gate that decides who may ask, and that adds
    `holdfast.api.web.access.HEADERS`.
    """
    addresses = Addresses(face.base)
    static, version = _static_files()
    renderer = _Renderer(face, addresses, version)
    known = Differences()

    def show_error(_: Request[Any, Any, Any], error: Exception) -> Response[str]:
        status, message, help_ = _error(error)
        return _html(renderer.part("error.html", status=status, message=message, hint=help_), status)

    @get("/", sync_to_thread=True)
    def timeline_page(request: Request[Any, Any, Any]) -> Response[str]:
        with face.workspaces.borrow() as workspace:
            found = timeline(workspace, addresses, _query(request), face.clock.now())
            return _html(renderer.page("timeline.html", workspace, timeline=found))

    @get("/rows", sync_to_thread=True)
    def rows(request: Request[Any, Any, Any]) -> Response[str]:
        query = _query(request)
        with face.workspaces.borrow() as workspace:
            found = timeline(workspace, addresses, query, face.clock.now())
            if not _is_part(request):
                return _html(renderer.page("timeline.html", workspace, timeline=found))
        response = _html(renderer.part("rows.html", timeline=found))
        if found.is_refresh and found.end != query.text("down_to"):
            # (So much has happened that the pages that follow would not follow: the list begins anew.)
            response.headers["HX-Refresh"] = "true"
        return response

    @get("/run/{name:str}", sync_to_thread=True)
    def run_page(request: Request[Any, Any, Any]) -> Response[str]:
        with face.workspaces.borrow() as workspace:
            found = run(workspace, addresses, request.path_params["name"])
            if _is_part(request):
                return _html(renderer.part("steps.html", run=found))
            return _html(renderer.page("run.html", workspace, run=found))

    @get("/step/{number:str}", sync_to_thread=True)
    def step_page(request: Request[Any, Any, Any]) -> Response[str]:
        with face.workspaces.borrow() as workspace:
            found = step(workspace, request.path_params["number"])
            if _is_part(request):
                return _html(renderer.part("step_paths.html", step=found))
            return _html(renderer.page("step.html", workspace, step=found))

    @get("/state/{name:str}", sync_to_thread=True)
    def state_page(request: Request[Any, Any, Any]) -> Response[str]:
        with face.workspaces.borrow() as workspace:
            found = state(workspace, addresses, request.path_params["name"], _query(request).path("path"))
            return _html(renderer.page("state.html", workspace, state=found))

    @get("/diff", sync_to_thread=True)
    def diff_page(request: Request[Any, Any, Any]) -> Response[str]:
        with face.workspaces.borrow() as workspace:
            found = difference(workspace, known, addresses, _query(request))
            if _is_part(request):
                return _html(renderer.part("diff_body.html", diff=found))
            return _html(renderer.page("diff.html", workspace, diff=found))

    @get("/diff/file", sync_to_thread=True)
    def diff_file(request: Request[Any, Any, Any]) -> Response[str]:
        with face.workspaces.borrow() as workspace:
            found, split = file_view(workspace, known, addresses, _query(request))
            if _is_part(request):
                return _html(renderer.part("diff_part.html", view=found, split=split))
            return _html(renderer.page("diff_one.html", workspace, view=found, split=split))

    @get("/raw/{name:str}", sync_to_thread=True)
    def raw_file(request: Request[Any, Any, Any]) -> Response[bytes]:
        with face.workspaces.borrow() as workspace:
            content, kind = raw(workspace, request.path_params["name"], _query(request).path("path"))
        headers = {"content-security-policy": SANDBOX}
        if not kind.startswith(("image/", "text/")):
            headers["content-disposition"] = "attachment"
        return Response(content, headers=headers, media_type=kind)

    @get("/static/{version:str}/{name:path}", sync_to_thread=False)
    def static_file(request: Request[Any, Any, Any]) -> Response[bytes]:
        found = static.get(str(request.path_params["name"]).lstrip("/"))
        if found is None:
            raise NotFoundError("there is no such page")
        headers = {"cache-control": "private, max-age=31536000, immutable"}
        return Response(found.content, headers=headers, media_type=found.kind)

    @get("/live")
    async def live(request: Request[Any, Any, Any]) -> ServerSentEvent:
        return ServerSentEvent(_changes(face, _query(request).text("since")))

    return Router(
        path=face.base,
        route_handlers=[
            timeline_page,
            rows,
            run_page,
            step_page,
            state_page,
            diff_page,
            diff_file,
            raw_file,
            static_file,
            live,
        ],
        exception_handlers={HTTPException: show_error, HoldfastError: show_error, Exception: show_error},
    )


def _error(error: Exception) -> tuple[int, str, str]:
    """Status, message and hint of what went wrong."""
    if isinstance(error, HoldfastError):
        status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
        return status, error.message, error.hint or ""
    if isinstance(error, HTTPException):
        message = "There is no such page." if error.status_code == 404 else error.detail
        return error.status_code, message, ""
    _LOG.error("a page could not be made: %s", error, exc_info=error)
    return 500, "This page could not be made; the log of the server says why.", ""


async def _changes(face: WebFace, since: str) -> AsyncIterator[dict[str, str]]:
    """Says ``changed`` whenever something has happened after the revision ``since``."""

    def look() -> str:
        with face.workspaces.borrow() as workspace:
            return workspace.history_revision()

    while not face.ending():
        try:
            found = await asyncio.to_thread(look)
        except HoldfastError as error:
            _LOG.warning("the history cannot be looked at: %s", error.message)
            found = since
        if found != since:
            since = found
            yield {"event": "changed", "data": found}
        await asyncio.sleep(LIVE_SECONDS)
