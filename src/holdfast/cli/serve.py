"""``serve``: the REST API, and the tokens that it is used with."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast import HoldfastError, UsageError
from holdfast.cli.command import Command, text
from holdfast.model.answers import commands
from holdfast.model.errors import UnsupportedError
from holdfast.model.message_text import visible
from holdfast.model.paths import display

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from holdfast.cli.console import Console
    from holdfast.cli.terminal import Row
    from holdfast.engine.opening.opener import Opener
    from holdfast.engine.promotion.build_isolation import BuildIsolation
    from holdfast.store.catalog.token_rows import TokenRow

_RIGHTS = ("read", "write", "admin")


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words", nargs="*", metavar="token create|list|revoke [ID]", help="make, list or revoke a token, and end"
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--listen", metavar="ADDRESS:PORT", help="where to listen (default: serve.listen); port 0: any")
    where.add_argument("--socket", metavar="PATH", help="listen on a Unix socket instead, mode 0600")
    parser.add_argument("--allow-remote", action="store_true", help="allow an address that other machines can reach")
    parser.add_argument(
        "--no-upkeep",
        action="store_true",
        help="only answer requests",
    )
    tokens = parser.add_argument_group("options of tokens")
    tokens.add_argument("--tenant", metavar="NAME", help="the token's tenant (default: store.tenant)")
    tokens.add_argument("--rights", choices=_RIGHTS, help="its rights (default: write)")
    tokens.add_argument("--export", metavar="NAME", action="append", default=[], help="valid for this export only")
    tokens.add_argument(
        "--root", metavar="DIR", action="append", default=[], help="it may make exports below this directory"
    )
    tokens.add_argument("--label", metavar="TEXT", type=text, default="", help="its purpose")
    tokens.add_argument("--expires", metavar="AGE", help="how long it is valid, as in 30d")


def _run(console: Console, arguments: argparse.Namespace) -> int:
    words: list[str] = arguments.words
    if not words:
        _refuse(arguments, "tenant", "rights", "export", "root", "label", "expires")
        return _serve(console, arguments)
    if words[0] != "token" or len(words) < 2 or words[1] not in ("create", "list", "revoke"):
        raise UsageError(
            f"`holdfast serve {' '.join(words)}` is no command", hint="serve, or serve token create|list|revoke"
        )
    _refuse(arguments, "listen", "socket", "allow_remote", "no_upkeep")
    from holdfast.engine.opening.opener import Opener

    flags = {} if arguments.tenant is None else {"store.tenant": arguments.tenant}
    opener = Opener(home=None if console.home is None else os.fsencode(console.home), flags=flags)
    try:
        return _tokens(console, arguments, opener)
    finally:
        opener.close()


def _refuse(arguments: argparse.Namespace, *names: str) -> None:
    for name in names:
        if getattr(arguments, name):
            raise UsageError(
                f"--{name.replace('_', '-')} has no meaning here", hint="`holdfast serve --help` tells more"
            )


def _serve(console: Console, arguments: argparse.Namespace) -> int:
    console.prepare_log(news=True, for_programs=True)
    require(("uvicorn", "litestar"))
    from holdfast.api.rest.server import ServeOptions, serve

    def ready(address: str, isolation: BuildIsolation) -> None:
        if console.json:
            console.give(
                commands.Listening,
                listening=address,
                promote_isolation=isolation.level,
                promote_isolation_reason=isolation.reason,
            )
        else:
            console.say(f"Listening at {visible(address)}; Ctrl-C ends it.")

    unsaved = serve(
        ServeOptions(
            home=None if console.home is None else os.fsencode(console.home),
            listen=arguments.listen,
            socket=None if arguments.socket is None else os.fsencode(arguments.socket),
            allow_remote=arguments.allow_remote,
            upkeep=not arguments.no_upkeep,
            ready=ready,
        )
    )
    if unsaved:
        raise HoldfastError(
            f"the server has ended with unsaved changes: {'; '.join(unsaved)}",
            hint="`holdfast checkpoint -w DIR` tries again",
            code="unsaved",
        )
    return 0


def require(names: Iterable[str], *, what: str = "serving") -> None:
    """Raise `UnsupportedError` unless all these libraries are installed: check before the work begins."""
    from importlib.util import find_spec

    missing: list[str] = []
    for name in names:
        try:
            found = find_spec(name)
        except ImportError:
            found = None
        if found is None:
            missing.append(name)
    if missing:
        from holdfast.model.extras import install_command

        raise UnsupportedError(
            f"{what} needs libraries of the extra server that are not installed: {', '.join(missing)}",
            hint=install_command("server"),
        )


def _tokens(console: Console, arguments: argparse.Namespace, opener: Opener) -> int:
    from holdfast.engine.exports import tokens
    from holdfast.store.catalog.token_rows import TokenRows

    catalog, words = opener.store().catalog, arguments.words
    if words[1] == "revoke":
        if len(words) != 3:
            raise UsageError("one token is revoked at a time", hint="holdfast serve token revoke ID")
        TokenRows(catalog).revoke(words[2])
        if console.json:
            console.give(commands.RevokedToken, revoked=words[2])
        else:
            console.say(f"Revoked the token {visible(words[2])}.")
        return 0
    if len(words) != 2:
        raise UsageError(f"`serve token {words[1]}` takes no {words[2]!r}")
    if words[1] == "list":
        rows = TokenRows(catalog).list()
        if console.json:
            console.give(commands.Tokens, tenant=catalog.name, tokens=rows)
        else:
            console.table(_TOKEN_COLUMNS, map(_row, rows))
        return 0
    secret, row = tokens.create_token(
        catalog,
        opener.clock,
        os.urandom,
        rights=arguments.rights or "write",
        exports=arguments.export,
        roots=[os.path.realpath(os.fsencode(root)) for root in arguments.root],
        label=arguments.label,
        lasts=None if arguments.expires is None else _age(arguments.expires),
    )
    if console.json:
        console.give(commands.NewToken, row, tenant=catalog.name, token=secret)
    else:
        console.answer((secret,))
        console.say("The token is shown only once. Send it as: Authorization: Bearer hft_…")
    return 0


def _age(given: str) -> float:
    from holdfast.model.config.values import parse_age

    try:
        return parse_age(given)
    except ValueError as error:
        raise UsageError(f"bad --expires: {error}") from None


_TOKEN_COLUMNS = (("token", 0), ("rights", 5), ("made", 0), ("for what", 0), ("label", 0))


def _row(row: TokenRow) -> Row:
    from holdfast.model.clock import isoformat

    what = (
        "" if row.expires_at is None else f"until {isoformat(row.expires_at)[:10]}",
        f"for {', '.join(row.exports)}" if row.exports else "",
        *(f"below {visible(display(root))}" for root in row.roots),
    )
    made = isoformat(row.created_at)[:10]
    return [row.id, row.rights, made, "  ".join(filter(None, what)), visible(row.label)]


COMMANDS = {
    "serve": Command(
        description="Serve workspaces over HTTP (docs/reference/rest.md), save them automatically, apply "
        "retention and collect. Requests need a token from `holdfast serve token create`, except those about "
        "health and the documentation. By default it listens on loopback only. After a signal it finishes the "
        "current requests, and saves.",
        configure=_configure,
        run=_run,
        intermixed=True,
        examples=(
            ("holdfast serve", "at 127.0.0.1:7420"),
            ("holdfast serve --socket ~/.cache/holdfast/rest.sock", "on a Unix socket"),
            (
                "holdfast serve token create --rights admin --root ~/projects",
                "a token that may serve directories there",
            ),
            ("holdfast serve token create --rights read --export shop", "a token that may read an export"),
            ("holdfast serve token list", "list the tokens"),
        ),
        exits=(
            (1, "some changes could not be saved"),
            (4, "refused: an address that other machines can reach, or the directory of the socket"),
        ),
    ),
}
