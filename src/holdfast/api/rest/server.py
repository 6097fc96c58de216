"""Serving from beginning to end: the sockets, the server, the upkeep, and a clean end by a signal."""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.api._http_server import BACKLOG, HttpLimits, serve_http, tcp_listener
from holdfast.api.rest._app import Server, ServerThreads, create_app
from holdfast.api.rest._authorization import Authorizer, Origins, Rates, hosts_of
from holdfast.api.rest._event_stream import EventHub
from holdfast.api.rest._metrics import Metrics
from holdfast.api.rest._store_pool import OpenedStore, StorePool
from holdfast.engine.exports.maintenance import Maintenance, MaintenanceLimits, raise_limit_of_files
from holdfast.engine.opening.opener import Opener
from holdfast.engine.promotion.build_isolation import find_isolation
from holdfast.engine.promotion.job_process import PromotionProcesses
from holdfast.ipc.listener import listen
from holdfast.model.errors import RefusedError, UsageError
from holdfast.model.log import Log, install_sender
from holdfast.model.log_format import adopt

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Generator, Mapping

    from holdfast.engine.promotion.build_isolation import BuildIsolation
    from holdfast.model.command_results import CheckpointResult
    from holdfast.model.config.settings import Promote

_log = Log(__name__)


class ServeOptions(NamedTuple):
    """What to serve, and where."""

    home: bytes | None
    listen: str | None = None
    """Address and port; None: as the settings say."""
    socket: bytes | None = None
    """A Unix socket, instead of an address."""
    allow_remote: bool = False
    flags: Mapping[str, object] = {}
    upkeep: bool = True
    """False: nothing is saved, thinned out and collected by itself."""
    ready: Callable[[str, BuildIsolation], None] = lambda _, __: None
    """Called with the address, and where promotions run their commands, once clients can come."""


def serve(serving: ServeOptions) -> list[str]:
    """Serve until SIGTERM or SIGINT. Then no request is accepted, requests in progress end, and unsaved changes are
    saved. Returns the exports that could not be saved, each with its reason.
    """
    install_sender()
    adopt("uvicorn.error")
    raise_limit_of_files()
    with ExitStack() as stack:
        first = Opener(home=serving.home, flags=serving.flags)
        stack.callback(first.close)
        settings = first.settings(None).serve
        home = first.home

        def open_tenant(tenant: str, *, lenient: bool = False, nearby: bool = False) -> Opener:
            more = {"store.tenant": tenant} if tenant else {}
            return Opener(home=home, flags={**serving.flags, **more}, lenient=lenient, nearby=nearby)

        listener, address, hosts, local = stack.enter_context(_listener(serving, settings.listen))
        clock, metrics = first.clock, Metrics()
        hub = EventHub(clock, secrets.token_hex(4))
        interval = first.settings(None).retention.interval
        caretaker = Maintenance(
            open_tenant,
            _Counting(hub, metrics),
            clock,
            MaintenanceLimits(workers=settings.watchers, collect_interval=interval),
        )
        # Upkeep searches for a moved directory; a request gets the error at once.
        stores = StorePool(partial(open_tenant, lenient=True, nearby=True), settings.threads)
        stack.callback(stores.close)
        threads = ServerThreads(
            requests=ThreadPoolExecutor(settings.threads, thread_name_prefix="holdfast-request"),
            tokens=ThreadPoolExecutor(1, thread_name_prefix="holdfast-token"),
            readiness=ThreadPoolExecutor(1, thread_name_prefix="holdfast-readiness"),
            promotions=ThreadPoolExecutor(settings.promotions, thread_name_prefix="holdfast-promotion"),
        )
        isolation = _isolation(first.settings(None).promote)
        outside = PromotionProcesses(home, isolation)
        app = Server(
            settings=settings,
            stores=stores,
            admission=Authorizer(
                tokens=OpenedStore(first),
                origins=Origins([*hosts, *settings.hosts], settings.origins, any_host=local),
                of_tokens=Rates(settings.requests_per_minute),
                of_addresses=Rates(max(1, settings.requests_per_minute // 10)),
                clock=clock,
            ),
            threads=threads,
            hub=hub,
            caretaker=caretaker,
            metrics=metrics,
            outside=outside,
        )
        if serving.upkeep:
            caretaker.start()
        try:
            limits = HttpLimits(settings.max_connections, settings.end_timeout)
            asyncio.run(_run(app, listener, limits, partial(serving.ready, address, isolation)))
        finally:
            outside.end()
            threads.end()
            unsaved = caretaker.stop() if serving.upkeep else []
        return unsaved


def _isolation(settings: Promote) -> BuildIsolation:
    """Where promotions run their commands; if not in namespaces, the log says so."""
    found = find_isolation(settings.isolation, settings.network)
    if found.level == "none":
        _log.warning("what promotions build is not isolated, and can do what the server can: %s", found.reason)
    elif found.level == "refused":
        _log.warning("promotions build nothing here, as it cannot be isolated: %s", found.reason)
    return found


async def _run(app: Server, listener: socket.socket, limits: HttpLimits, ready: Callable[[], None]) -> None:
    def end() -> None:
        app.ending = True
        # A build may outlast the client's patience. It is reversed, and a request with its key starts it again.
        app.outside.end()
        app.hub.end()

    try:
        await serve_http(create_app(app), listener, limits, ready=ready, ending=end)
    finally:
        app.hub.end()
    if app.running:
        _log.info("waiting for current requests", requests=len(app.running))
        _, left = await asyncio.wait(set(app.running), timeout=limits.end_seconds)
        if left:
            _log.warning("not waiting any longer for current requests", requests=len(left))


class _Counting:
    """Passes on what the upkeep tells, and counts it."""

    def __init__(self, hub: EventHub, metrics: Metrics) -> None:
        self._hub, self._metrics = hub, metrics

    def changed(self, tenant: str, export: str, paths: Any) -> None:
        self._hub.changed(tenant, export, paths)

    def listens(self, tenant: str, export: str) -> bool:
        return self._hub.listens(tenant, export)

    def saved(self, tenant: str, export: str, result: CheckpointResult) -> None:
        if result.checkpoint.kind == "auto":
            self._metrics.counted("auto_checkpoints")
        self._hub.saved(tenant, export, result)


@contextmanager
def _listener(serving: ServeOptions, usual: str) -> Generator[tuple[socket.socket, str, list[str], bool]]:
    """The listening socket, its address for people, its host names, and whether it is a Unix socket."""
    if serving.socket is not None:
        with listen(serving.socket, BACKLOG) as bound:
            yield bound, f"unix:{serving.socket.decode('utf-8', 'backslashreplace')}", [], True
        return
    host, port = parse_address(serving.listen or usual)
    _refuse_remote(host, serving)
    with tcp_listener(host, port, hint="name another one: --listen ADDRESS:PORT") as bound:
        number = bound.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        yield bound, f"http://{shown}:{number}", hosts_of(host), False


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of ``text``. Raises `UsageError`."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"{text!r} is no address with a port", hint="such as 127.0.0.1:7420, or [::1]:7420")
    if host != "localhost":
        try:
            ipaddress.ip_address(host)
        except ValueError:
            raise UsageError(f"{host!r} is no IP address", hint="such as 127.0.0.1:7420, or [::1]:7420") from None
    return host, int(port)


def _refuse_remote(host: str, serving: ServeOptions) -> None:
    if host == "localhost" or ipaddress.ip_address(host).is_loopback:
        return
    if not serving.allow_remote:
        raise RefusedError(
            f"{host} can be reached from other machines, and nothing here is encrypted",
            hint="put a server that speaks TLS in front, and listen on loopback; where that is done: --allow-remote",
            code="remote",
        )
    _log.warning("listening at %s: tokens and files go over the network in the clear, unless TLS is in front", host)
