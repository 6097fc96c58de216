"""The routes: each borrows a workspace, has a page made of it, and puts that into its template.

Work is synchronous, in threads. For a request of htmx a page answers with the requested part alone; without JavaScript
the same address is a page of its own.
"""

from __future__ import annotations

import asyncio
import hashlib
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from litestar import MediaType, Request, Response, Router, get, post
from litestar.exceptions import HTTPException
from litestar.response import ServerSentEvent

from holdfast.api.web.access import MOST_FORM_BYTES
from holdfast.api.web.acts import Outcome, Outcomes, StalePlanError, plan, refusal
from holdfast.api.web.addresses import Addresses, Query
from holdfast.api.web.diff_page import Differences, difference, file_view
from holdfast.api.web.experiments_page import experiments_digest, experiments_page
from holdfast.api.web.file_kinds import SANDBOX
from holdfast.api.web.held_page import answer, answered, digest_of, held
from holdfast.api.web.machines_page import machines_page
from holdfast.api.web.state_page import raw, state
from holdfast.api.web.timeline_page import KINDS, run, step, timeline
from holdfast.api.web.words import path_text
from holdfast.engine.sessions.machines import has_machines
from holdfast.model.errors import (
    EscapeError,
    HoldfastError,
    NotFoundError,
    RefusedError,
    UnsupportedError,
    UsageError,
)
from holdfast.model.log import Log
from holdfast.model.message_text import visible

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from litestar.handlers import HTTPRouteHandler

    from holdfast.api.web.workspaces import Workspaces
    from holdfast.engine.workspace.workspace import Workspace
    from holdfast.model.clock import Clock

    Make = Callable[[Workspace, str, Query], dict[str, Any]]
    """Gives the values of a page: of a workspace, the name in the address, and what is said behind that."""

_LOG = Log(__name__)

_STATIC: Final = {
    "style.css": "text/css",
    "keys.js": "text/javascript",
    "live.js": "text/javascript",
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
"""How often the history is read while a page is open."""


class WebFace(NamedTuple):
    """The shared parts of all pages."""

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
        self._addresses = addresses
        self._everywhere: dict[str, Any] = {
            "page": addresses.page,
            "version": version,
            "form_token": face.form_token,
            "kinds": KINDS,
            "base": face.base,
        }

    def page(
        self,
        template: str,
        workspace: Workspace,
        /,
        *,
        revision: str | None = None,
        watched: str = "",
        **values: Any,
    ) -> str:
        """A whole page. ``revision``: of the history as it shows it (None: as it is); ``watched``: the digest of the
        experiments, where it shows them.
        """
        path = path_text(workspace.path)
        return self._templates.get_template(template).render(
            self._everywhere,
            workspace_path=path,
            workspace_name=path.rpartition("/")[2] or path,
            revision=workspace.history_revision() if revision is None else revision,
            waiting=held(workspace, self._addresses),
            watched=watched,
            has_machines=has_machines(workspace),
            **values,
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


def _see(address: str) -> Response[str]:
    """Redirect to the outcome of a form, so that no reload sends the form again."""
    return Response("", media_type=MediaType.HTML, status_code=303, headers={"location": address})


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

    def show_rows(request: Request[Any, Any, Any]) -> Response[str]:
        query = _query(request)
        with face.workspaces.borrow() as workspace:
            found = timeline(workspace, addresses, query, face.clock.now())
            if not _is_part(request):
                return _html(renderer.page("timeline.html", workspace, revision=found.revision, timeline=found))
        response = _html(renderer.part("rows.html", timeline=found))
        if found.is_refresh and found.end != query.text("down_to"):
            # The refreshed rows do not reach the shown ones, so the list begins anew.
            response.headers["HX-Refresh"] = "true"
        return response

    def shown(path: str, template: str, make: Make, part: str = "") -> HTTPRouteHandler:
        """A page that is made of a workspace; ``part`` is the template of what htmx asks for."""

        @get(path, sync_to_thread=True)
        def show(request: Request[Any, Any, Any]) -> Response[str]:
            with face.workspaces.borrow() as workspace:
                values = make(workspace, request.path_params.get("name", ""), _query(request))
                if part and _is_part(request):
                    return _html(renderer.part(part, **values))
                return _html(renderer.page(template, workspace, **values))

        return show

    def diff_file(workspace: Workspace, _: str, query: Query) -> dict[str, Any]:
        view, split = file_view(workspace, known, addresses, query)
        return {"view": view, "split": split}

    def experiments(workspace: Workspace, _: str, query: Query) -> dict[str, Any]:
        found = experiments_page(workspace, addresses, query)
        return {"experiments": found, "watched": found.digest}

    pages = [
        get("/", sync_to_thread=True)(show_rows),
        get("/rows", sync_to_thread=True)(show_rows),
        shown("/run/{name:str}", "run.html", lambda w, name, _: {"run": run(w, addresses, name)}, "steps.html"),
        shown("/step/{name:str}", "step.html", lambda w, name, _: {"step": step(w, name)}, "step_paths.html"),
        shown("/state/{name:str}", "state.html", lambda w, name, q: {"state": state(w, addresses, name, q)}),
        shown("/diff", "diff.html", lambda w, _, q: {"diff": difference(w, known, addresses, q)}, "diff_body.html"),
        shown("/diff/file", "diff_one.html", diff_file, "diff_part.html"),
        shown(
            "/machines",
            "machines.html",
            lambda w, _, __: {"machines": machines_page(w, addresses)},
            "machines_body.html",
        ),
        shown("/experiments", "experiments.html", experiments, "experiments_body.html"),
    ]

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
        query = _query(request)
        return ServerSentEvent(_changes(face, query.text("since"), query.text("held"), query.text("experiments")))

    outcomes = Outcomes()
    no_form = Query(b"")

    @get("/act/{name:str}", sync_to_thread=True)
    def act_page(request: Request[Any, Any, Any]) -> Response[str]:
        return show_act(request.path_params["name"], _query(request))

    def show_act(name: str, query: Query, status: int = 200, note: str = "", form: Query = no_form) -> Response[str]:
        with face.workspaces.borrow() as workspace:
            try:
                found = plan(workspace, addresses, name, query)
            except (NotFoundError, RefusedError, UsageError) as error:
                refused = refusal(addresses, name, query, error)
                return _html(renderer.page("outcome.html", workspace, outcome=refused), _error(error)[0])
            number = outcomes.new_number()
            ticked = {*form.texts("part"), *form.texts("file")}
            page = renderer.page("act.html", workspace, act=found, number=number, note=note, ticked=ticked)
            return _html(page, status)

    @post("/act/{name:str}", request_max_body_size=MOST_FORM_BYTES)
    async def carry_out(request: Request[Any, Any, Any]) -> Response[str]:
        form = Query(await request.body())
        return await asyncio.to_thread(carry_out_once, request.path_params["name"], _query(request), form)

    def carry_out_once(name: str, query: Query, form: Query) -> Response[str]:
        number = form.text("number")
        if outcomes.begin(number):
            try:
                outcomes.end(number, carried_out(name, query, form))
            except StalePlanError as error:
                outcomes.abandon(number)
                return show_act(name, query, 409, str(error), form)
            except BaseException:
                outcomes.abandon(number)
                raise
        return _see(addresses.page(f"done/{number}"))

    def carried_out(name: str, query: Query, form: Query) -> Outcome:
        """The outcome of an act, if its plan is still the one that was shown."""
        try:
            with face.workspaces.borrow() as workspace:
                found = plan(workspace, addresses, name, query)
                if not found.button or found.fingerprint != form.text("plan"):
                    raise StalePlanError("Things have changed since you looked. This is what it would do now.")
                return found.carry_out(form)
        except HoldfastError as error:
            return refusal(addresses, name, query, error)

    @get("/done/{number:str}", sync_to_thread=True)
    def done_page(request: Request[Any, Any, Any]) -> Response[str]:
        outcome = outcomes.get(request.path_params["number"])
        with face.workspaces.borrow() as workspace:
            return _html(renderer.page("outcome.html", workspace, outcome=outcome))

    @get("/held", sync_to_thread=True)
    def held_page(request: Request[Any, Any, Any]) -> Response[str]:
        with face.workspaces.borrow() as workspace:
            if _is_part(request):
                return _html(renderer.part("held.html", waiting=held(workspace, addresses)))
            return _html(renderer.page("waiting.html", workspace))

    @post("/held/{number:str}", request_max_body_size=MOST_FORM_BYTES)
    async def answer_held(request: Request[Any, Any, Any]) -> Response[str]:
        form = Query(await request.body())
        return await asyncio.to_thread(answer_once, request.path_params["number"], form)

    def answer_once(ticket_number: str, form: Query) -> Response[str]:
        allow = form.choice("answer", ("deny", "allow")) == "allow"
        number = outcomes.new_number()
        outcomes.begin(number)
        try:
            with face.workspaces.borrow() as workspace:
                ticket = answer(workspace, ticket_number, form.text("plan"), allow=allow)
            outcomes.end(number, answered(ticket, allow=allow))
        except HoldfastError as error:
            outcomes.end(number, refusal(addresses, "answer", form, error))
        return _see(addresses.page(f"done/{number}"))

    return Router(
        path=face.base,
        route_handlers=[
            *pages,
            raw_file,
            static_file,
            live,
            act_page,
            carry_out,
            done_page,
            held_page,
            answer_held,
        ],
        exception_handlers={HTTPException: show_error, HoldfastError: show_error, Exception: show_error},
    )


def _error(error: Exception) -> tuple[int, str, str]:
    """Status, message and hint of an error."""
    if isinstance(error, HoldfastError):
        status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
        return status, visible(error.message), visible(error.hint or "")
    if isinstance(error, HTTPException):
        message = "There is no such page." if error.status_code == 404 else visible(error.detail)
        return error.status_code, message, ""
    _LOG.error("a page could not be made: %s", error, exc_info=error)
    return 500, "This page could not be made; the log of the server says why.", ""


async def _changes(face: WebFace, since: str, waiting: str, watched: str) -> AsyncIterator[dict[str, str]]:
    """Sends ``changed`` after each event since the revision ``since``, ``held`` when the waiting operations differ from
    the digest ``waiting``, and ``experiments`` when they differ from the digest ``watched``, unless that is empty.
    """
    known = {"changed": since, "held": waiting, "experiments": watched}

    def look() -> dict[str, str]:
        with face.workspaces.borrow() as workspace:
            return {
                "changed": workspace.history_revision(),
                "held": digest_of(workspace.held()),
                "experiments": experiments_digest(workspace) if watched else "",
            }

    while not face.ending():
        found = known
        try:
            found = await asyncio.to_thread(look)
        except HoldfastError as error:
            _LOG.warning("the history cannot be looked at: %s", error.message)
        for event in ("held", "changed", "experiments"):
            if found[event] != known[event]:
                yield {"event": event, "data": found[event] or "nothing"}
        known = found
        await asyncio.sleep(LIVE_SECONDS)
