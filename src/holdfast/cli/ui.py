"""``ui``: the timeline in a browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast import UsageError
from holdfast.cli.command import Command
from holdfast.model.answers import commands
from holdfast.model.message_text import visible

if TYPE_CHECKING:
    import argparse

    from holdfast.cli.console import Console

_LIBRARIES = ("jinja2", "litestar", "pygments", "uvicorn")


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", metavar="N", type=int, default=0, help="where to listen (default: any free port)")
    parser.add_argument("--no-browser", action="store_true", help="only print the address")


def _run(console: Console, arguments: argparse.Namespace) -> int:
    if not 0 <= arguments.port <= 65535:
        raise UsageError(f"--port {arguments.port} is no port: they go from 1 to 65535")
    console.prepare_log()
    from holdfast.cli.serve import require

    require(_LIBRARIES, what="the page")
    with console.open():  # so that errors come before anything is served
        pass
    from holdfast.api.web.server import UiOptions, serve_ui

    opens_browser = not (arguments.no_browser or console.json)

    def ready(address: str) -> None:
        if console.json:
            console.give(commands.UiListening, address=address)
        else:
            console.say(
                f"The timeline is at {visible(address)}", "The address lets one browser in, once. Ctrl-C ends it."
            )
        if opens_browser:
            import threading
            import webbrowser

            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    serve_ui(UiOptions(lambda: console.open(offer=False), arguments.port, ready, may_hide=not opens_browser))
    return 0


COMMANDS = {
    "ui": Command(
        description="Look at the timeline in a browser: what happened, the files of each state, attempts of "
        "experiments, differences between any two states. It serves on the loopback address until Ctrl-C. The "
        "printed address lets one browser in, once.",
        configure=_configure,
        run=_run,
        examples=(
            ("holdfast ui", "opens the browser"),
            ("holdfast ui --port 8080 --no-browser", "prints an address, for a browser elsewhere by `ssh -L`"),
        ),
    ),
}
