"""One call of the command line: its global options, its streams, and the workspace that it is about."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager, nullcontext, suppress

from holdfast import FormatError, NotFoundError, UsageError
from holdfast.cli.terminal import Palette, is_terminal, show_path, wants_colour
from holdfast.model.fast_typing import TYPE_CHECKING, TypeVar
from holdfast.model.log import Log, set_sender
from holdfast.model.paths import parse_display

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from holdfast import Home, Workspace
    from holdfast.cli.terminal import Column, Row
    from holdfast.model.content import Progress
    from holdfast.model.log import Level

_LOG = Log(__name__)

T = TypeVar("T")


class Console:
    """Where a command reads its global options and puts its words."""

    __slots__ = ("_early_scan", "directory", "home", "json", "log_level", "paint", "quiet", "verbose")

    def __init__(
        self,
        *,
        home: str | None = None,
        directory: str | None = None,
        json: bool = False,
        quiet: bool = False,
        verbose: bool = False,
        log_level: Level | None = None,
    ) -> None:
        self.home = home
        self.directory = directory
        self.json = json
        self.quiet = quiet
        self.verbose = verbose
        self.log_level: Level | None = log_level
        self._early_scan = False
        self.paint = Palette(wants_colour(sys.stdout, os.environ) and not json)

    @classmethod
    def of(cls, parsed: argparse.Namespace) -> Console:
        """The console that the global options ask for."""
        return cls(
            home=parsed.home,
            directory=parsed.workspace,
            json=parsed.json,
            quiet=parsed.quiet,
            verbose=parsed.verbose,
            log_level=parsed.log_level,
        )

    # -- words --------------------------------------------------------------------------------------------------

    def say(self, *lines: str) -> None:
        """Print ``lines``, which must be `visible` already, on standard output; nothing with ``-q`` or ``--json``."""
        if not self.quiet and not self.json:
            self.answer(lines)

    def note(self, text: str) -> None:
        """A line about progress, on standard error; nothing with ``-q`` or ``--json``."""
        if not self.quiet and not self.json:
            sys.stderr.write(f"holdfast: {text}\n")

    def answer(self, lines: Iterable[str]) -> None:
        """Print the requested output: also with ``-q``."""
        sys.stdout.writelines(f"{line}\n" for line in lines)

    def answer_paged(self, lines: Iterable[str], *, pager: bool) -> None:
        """Print the requested output through a pager, if ``pager`` is true and standard output is a person's terminal.
        The pager is the program in ``$HOLDFAST_PAGER`` or ``$PAGER``, split as by a shell (empty or ``cat``: none),
        else less. The user may quit it early.
        """
        command = None
        if pager and not self.json and is_terminal(sys.stdout):
            from shlex import split

            given = next((os.environ[name] for name in ("HOLDFAST_PAGER", "PAGER") if name in os.environ), "less")
            try:
                command = split(given)
            except ValueError as error:
                self.warn(f"the pager {given!r} cannot be read: {error}")
        if not command or command == ["cat"]:
            self.answer(lines)
            return
        from holdfast.processes.child import run_with_input_at_terminal

        sys.stdout.flush()
        # As in Git: less exits if the text fits on a screen, shows colours, and leaves the text on the screen.
        environment = {"LESS": "FRX", "LV": "-c", **os.environ}
        pieces = (f"{line}\n".encode(errors=sys.stdout.errors or "replace") for line in lines)
        try:
            run_with_input_at_terminal(command, pieces, environment=environment)
        except OSError as error:
            if "PAGER" in os.environ or "HOLDFAST_PAGER" in os.environ:
                self.warn(f"the pager {command[0]!r} cannot be started: {error.strerror}")
            self.answer(lines)

    def table(self, columns: Sequence[Column], rows: Iterable[Row]) -> None:
        """Print the requested list: a line for each of ``rows``, in aligned columns, without those that are empty. On a
        terminal a line with the columns' names stands above them, unless there are no rows; elsewhere there is none, so
        that a program that reads it finds rows alone.

        A row has a cell for each column, its text without colour (`visible`), or with one; the first one is yellow. A
        row that is a text becomes a line of its own. The last column is not limited in width.
        """
        from holdfast.cli.terminal import table_lines

        self.answer(table_lines(self.paint, columns, list(rows), named=is_terminal(sys.stdout)))

    def write(self, pieces: Iterable[bytes]) -> None:
        """Write bytes to standard output as they are, all of them."""
        sys.stdout.flush()
        out = sys.stdout.buffer
        for piece in pieces:
            # Without buffering (PYTHONUNBUFFERED) a write may take only a part, as a pipe's does when its reader goes.
            rest = memoryview(piece)
            while rest:
                rest = rest[out.write(rest) :]
        out.flush()

    def give(self, kind: type, value: object = None, /, **more: object) -> None:
        """Print the one JSON object of ``--json``: see `holdfast.model.json_encoder.encode`."""
        import json

        from holdfast.model.json_encoder import encode

        self.write((json.dumps(encode(kind, value, **more)).encode() + b"\n",))

    def warn(self, text: str) -> None:
        """A warning, as any in the log: on standard error, and not with ``-q``."""
        _LOG.warning("%s", text)

    @property
    def interactive(self) -> bool:
        """True if a person can be asked: at a terminal, without ``--json`` and ``-q``."""
        return is_terminal(sys.stdin) and is_terminal(sys.stderr) and not self.json and not self.quiet

    def progress(self) -> AbstractContextManager[Progress | None]:
        """To be entered around long work; gives its ``progress``: None unless standard error is a terminal."""
        if self.quiet or not is_terminal(sys.stderr):
            return nullcontext()
        from holdfast.cli.progress_bar import Bar

        return Bar(sys.stderr)

    # -- the workspace ------------------------------------------------------------------------------------------

    def open(
        self,
        *,
        offer: bool = True,
        strict: bool = False,
        freeing: bool = False,
        scan: bool = False,
        create: bool = False,
    ) -> Workspace:
        """Open the workspace at or above the directory; warn of a restore that was cut short (if ``offer``).

        A wrong ``holdfast.toml`` in the workspace is a warning; for a ``strict`` command, which saves by its rules, an
        error. ``freeing``: the command works on a full disk. ``scan``: the command needs a scan of the whole tree,
        which starts at once (`close` ends it). ``create``: the command begins to save, so a directory outside any
        workspace becomes one.
        """
        where = self.directory or current_directory()
        if scan:
            from holdfast.cli import early_scan

            self._early_scan = True
            early_scan.start(where, self.home, os.environ)
        import holdfast

        workspace = holdfast.open(where, home=self.home, lenient=not strict, freeing=freeing, create=create)
        if workspace.misconfigured is not None:
            self.warn(workspace.misconfigured.message)
        if offer:
            self._warn_of_unfinished(workspace)
        return workspace

    def _warn_of_unfinished(self, workspace: Workspace) -> None:
        try:
            unfinished = workspace.unfinished()
        except FormatError as error:  # commands that need the record raise this again
            self.warn(error.message)
            return
        if unfinished is not None:
            from holdfast.model.message_text import with_article

            self.warn(
                f"{with_article(unfinished.kind)} to {unfinished.target[:12]} was cut short, and files may be half "
                "way; `holdfast restore --continue` finishes it, `holdfast restore --abort` goes back"
            )

    def close(self) -> None:
        """End the early scan that `open` has started, if the command has not used it."""
        if self._early_scan:
            from holdfast.files.scan.parallel_scan import end_early

            end_early()

    def open_home(self, *, freeing: bool = False) -> Home:
        """Open the home, which needs no workspace."""
        import holdfast

        return holdfast.open_home(self.home, freeing=freeing)

    def open_either(self, *, freeing: bool = False) -> Workspace | Home:
        """Open the workspace, if the current directory is in one or ``-w`` says so; else the home."""
        try:
            return self.open(freeing=freeing)
        except NotFoundError as error:
            if error.code != "no_workspace" or self.directory is not None:
                raise
            try:
                return self.open_home(freeing=freeing)
            except NotFoundError:
                raise error from None

    def prepare_log(self, *, news: bool = False, for_programs: bool = False) -> None:
        """Send the log to standard error, from ``--log-level`` on; by default warnings, with ``news`` or ``-v``
        progress, too.

        The lines are JSON with ``--json``; if standard error is no terminal, also for a requested log and
        ``for_programs``.
        """
        level = self.log_level or ("info" if self.verbose else "error" if self.quiet else "info" if news else "warn")
        wanted = for_programs or self.log_level is not None
        as_json = self.json or (wanted and not is_terminal(sys.stderr))

        def begin() -> None:
            from holdfast.model.log_format import LineHandler, send

            send(level, LineHandler(as_json=as_json))

        set_sender(level, begin)

    def paths(self, workspace: Workspace, given: Iterable[str | bytes]) -> list[bytes]:
        """PATH arguments as paths in the workspace: relative to the current directory, if that is inside it.

        Outside of it they are relative to the workspace's root. The root itself is the empty path. Raises
        `UsageError` for a path that lies outside.
        """
        wanted = [os.fsencode(path) for path in given]
        if not wanted:
            return []
        current = os.path.realpath(os.fsencode(current_directory()))
        return [relative_to_root(workspace.path, path, current) for path in wanted]

    def with_paths(self, workspace: Workspace, given: Sequence[str], work: Callable[[list[bytes]], T]) -> T:
        r"""Call ``work`` with the `paths` of the arguments; if they do not exist, with the paths that are printed in
        that form.

        ``caf\xe9`` is then the file whose name has that byte, and the path is relative to the workspace's root.
        """
        try:
            return work(self.paths(workspace, given))
        except NotFoundError as error:
            if error.code != "no_such_path":
                raise
            for reading in self.printed_paths(workspace, given):
                with suppress(NotFoundError, UsageError):
                    return work(reading)
            raise

    def printed_paths(self, workspace: Workspace, given: Sequence[str]) -> Iterator[list[bytes]]:
        """The same arguments read as paths that Holdfast printed, where that differs from `paths`."""
        known = self.paths(workspace, given)
        names = [parse_display(path) for path in given]
        for current in (os.path.realpath(os.fsencode(current_directory())), workspace.path):
            with suppress(UsageError):
                reading = [relative_to_root(workspace.path, name, current) for name in names]
                if reading != known:
                    known = reading
                    yield reading


_DELETED = " (deleted)"
"""The suffix that Linux adds to the path of a deleted directory."""


def current_directory() -> str:
    """The current directory; if it was deleted while the shell was in it, where it was."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        known = os.environ.get("PWD", "")
        # A shell that started in a deleted directory has no path for it.
        return known if os.path.isabs(known) else os.readlink("/proc/self/cwd").removesuffix(_DELETED)


def relative_to_root(root: bytes, path: bytes, current: bytes) -> bytes:
    """``path`` relative to ``root``; it is taken as relative to ``current``, or to ``root`` if that is outside."""
    prefix = b"" if root == b"/" else root
    start = current if current == root or current.startswith(prefix + b"/") else root
    absolute = os.path.normpath(path if path.startswith(b"/") else start + b"/" + path)
    beyond_links = os.path.realpath(os.path.dirname(absolute)) + b"/" + os.path.basename(absolute)
    for candidate in (absolute, beyond_links):
        if candidate == root:
            return b""
        if candidate.startswith(prefix + b"/"):
            return candidate[len(prefix) + 1 :]
    raise UsageError(f"{show_path(path)} is outside the workspace {show_path(root)}")
