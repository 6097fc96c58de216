"""The public API of promotion: begin one, resume an interrupted one, sweep remains, list them."""

from __future__ import annotations

import os
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING

from holdfast.engine.merging.reapply.answer_queue import last_shown
from holdfast.engine.merging.reapply.manual_resolution import shown_version
from holdfast.engine.opening.context import connect_watcher
from holdfast.engine.opening.current_run import forbid_inside_run
from holdfast.engine.opening.opener import Opener
from holdfast.engine.promotion import _build_directory as build_directory
from holdfast.engine.promotion import _cleanup as cleanup
from holdfast.engine.promotion import _swap as swap
from holdfast.engine.promotion import _target_state as target_state
from holdfast.engine.promotion._job_context import PromotionSite, hold_production, open_named
from holdfast.engine.promotion._target_state import combine
from holdfast.engine.promotion._workflow import PromotionRun
from holdfast.engine.promotion.build_isolation import decide_isolation
from holdfast.engine.promotion.spec import (
    DecidedFile,
    PromotionAnswer,
    PromotionFacts,
    PromotionSpec,
    check_settings,
    decode_facts,
    decode_spec,
    encode_json,
)
from holdfast.files.directories.replication import remove_whole
from holdfast.model.errors import HoldfastError, LockedError, NotFoundError, RefusedError, UsageError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.ids import CheckpointId, WorkspaceId
from holdfast.model.log import Log
from holdfast.model.paths import check_path, display, parse_display
from holdfast.store.catalog.promotion_rows import PromotionRow, PromotionRows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from holdfast.engine.opening.context import Context
    from holdfast.engine.promotion._job_context import ProductionLease, PromotionJob

_LOG = Log(__name__)
_MOST_SAID = 4000
_MOST_DECIDED = 16 << 20
"""Bytes of all resolutions of a promotion, which its row in the catalog keeps."""
_ID_DIGITS = 16


class Promotion(NamedTuple):
    """A promotion as it is now."""

    row: PromotionRow
    facts: PromotionFacts
    path: str
    """Of production."""

    @property
    def answer(self) -> PromotionAnswer:
        """How it has ended; an empty result if it has not."""
        return self.facts.answer or PromotionAnswer(result=self.row.result)

    @property
    def runs_commands(self) -> bool:
        """Whether anything is set up, built, started or asked for its health; `FormatError` for a damaged row."""
        return decode_spec(self.row.spec).runs_commands


class ProductionRef(NamedTuple):
    """A production that the caller has examined before: another directory at its path is refused."""

    workspace: WorkspaceId
    place: tuple[int, int]
    """Device and inode of its directory."""

    @classmethod
    def parse(cls, text: str) -> ProductionRef:
        """From ``ID:DEVICE:INODE``. Raises `UsageError`."""
        parts = text.split(":")
        if len(parts) != 3 or not all(part.isascii() and part.isdecimal() for part in parts[1:]):
            raise UsageError(f"{text[:80]!r} is no ID:DEVICE:INODE")
        return cls(WorkspaceId(parts[0]), (int(parts[1]), int(parts[2])))

    def __str__(self) -> str:
        """The text for `parse`."""
        return f"{self.workspace}:{self.place[0]}:{self.place[1]}"


class PromotionSweep(NamedTuple):
    """The result of `Promotions.sweep`."""

    settled: Sequence[str]
    """Interrupted promotions, now reversed, or finished if production was swapped already."""
    removed: Sequence[str]
    """Directories that are gone."""
    kept: Sequence[str]
    """Old directories that stay, as a process uses them, or has written to them since the swap."""
    busy: Sequence[str]
    """Promotions that another process works on."""


class Promotions:
    """The promotions of one home. For one thread; one promotion at a time."""

    def __init__(
        self,
        *,
        home: str | bytes | os.PathLike[str] | None = None,
        environ: Mapping[str, str] | None = None,
        flags: Mapping[str, object] | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        """``tell`` is called, on another thread, with the name of each step that begins."""
        found = Opener(home=None if home is None else os.fsencode(home), environ=environ)
        self._site = PromotionSite(found.home, os.environ if environ is None else environ, dict(flags or {}))
        self._tell = tell or _nothing

    def promote(
        self,
        fork: str | bytes | os.PathLike[str],
        *,
        to: str | bytes | os.PathLike[str] | ProductionRef | None = None,
        author: str = "",
        message: str = "",
        command: str = "",
        name: str = "",
        decided: Sequence[DecidedFile] = (),
    ) -> Promotion:
        """Bring a fork's changes to production, or leave it unchanged, byte for byte.

        ``fork`` is a directory, whose state is saved first, or a checkpoint's name; ``to`` is production (None: the
        fork's origin); a `ProductionRef` requires the id of a checkpoint. ``name`` is the promotion's id, 16 hex digits
        (empty: a new one), for callers that must find it again; `RefusedError` (code ``promotion_exists``) if it
        exists. Decisions in ``decided`` about files that both sides have changed are valid for the shown versions
        (`RefusedError`, ``not_shown``, without any); if those have changed, it ends ``failed``, ``stale``. Waits for
        other promotions to the same production (`LockedError`, ``promotion_busy``), and finishes or reverses
        interrupted ones. Atomic for every process that reads production's path, unless the answer says otherwise;
        durable when it returns. The answer has the result: ``promoted``, ``unchanged``, ``needs_reapply``,
        ``build_failed``, ``failed``. Raises `UnsupportedError` without the configured isolation, `RefusedError`,
        `UsageError`, `NotFoundError`, all before it begins.
        """
        check_id(name)
        with self._site.open_home() as opener:
            context, source, theirs = _resolve(opener, fork, to)
            forbid_inside_run(context, "a promotion")
            check_settings(context.settings.promote)
            target_state.refuse_running(context)
            row = PromotionRow(
                id=name or context.random(8).hex(),
                workspace=context.workspace.id,
                phase="building",
                result="",
                source=source,
                theirs=theirs,
                spec=encode_json(
                    _spec(
                        context,
                        author,
                        _message(fork, to, message),
                        command,
                        to.place if isinstance(to, ProductionRef) else None,
                        _decided(context, decided),
                    )
                ),
                facts=encode_json(PromotionFacts()),
            )
            path, wait = context.workspace.path, context.settings.promote.wait
        with hold_production(self._site, row.workspace, wait=wait, who=display(path)) as lease:
            self._settle_others(row)
            self._clear_old(row)
            with self._site.open_home() as opener:
                catalog = opener.store().catalog
                if PromotionRows(catalog).by_prefix(row.id):
                    raise RefusedError(f"there is a promotion {row.id}", code="promotion_exists")
                # Pin first: the state of a row without a pin could be forgotten.
                catalog.pin(catalog.checkpoint(theirs).root, f"the promotion {row.id}", checkpoint=theirs)
                PromotionRows(catalog).add(row)
            with self._site.open_job(row.id) as job:
                try:
                    decide_isolation(job)
                except HoldfastError as error:
                    job.end(PromotionAnswer(result="failed", code=error.code, message=error.message))
                    raise
            return self._run(lease, row.id)

    def foresee(
        self,
        fork: str | bytes | os.PathLike[str],
        *,
        to: str | bytes | os.PathLike[str] | None = None,
        decided: Sequence[DecidedFile] = (),
    ) -> PromotionAnswer:
        """The result of a promotion beforehand: ``clean``, ``unchanged`` or ``needs_reapply``. Saves both, changes no
        tree.
        """
        with self._site.open_home() as opener:
            context, _, theirs = _resolve(opener, fork, to)
            forbid_inside_run(context, "a promotion")
            check_settings(context.settings.promote)
            from holdfast.engine.history.checkpoint import create_checkpoint_locked
            from holdfast.model.command_results import CheckpointRequest

            with context.lock():
                ours = create_checkpoint_locked(context, CheckpointRequest(kind="auto")).checkpoint.id
            return target_state.plan_answer(combine(context, ours, theirs, None, decided=decided))

    def resume(self, name: str = "") -> Promotion:
        """Resume an interrupted promotion. It is the one with this id or unique prefix, or the only one.

        Raises `NotFoundError` (``nothing_unfinished``) if there is none, and as `promote`.
        """
        with self._site.open_home() as opener:
            rows = PromotionRows(opener.open_home().store.catalog)
            row = _unfinished(rows, name)
        with hold_production(self._site, row.workspace, wait=0, who=f"the production of {row.id}") as lease:
            self._settle_others(row)
            if self.get(row.id).row.phase == "ended":
                return self.get(row.id)
            return self._run(lease, row.id)

    def get(self, name: str) -> Promotion:
        """One promotion. Raises `NotFoundError`."""
        with self._site.open_home() as opener:
            row = PromotionRows(opener.open_home().store.catalog).get(name)
        return promotion_from_row(row)

    def list(self) -> list[Promotion]:
        """All promotions, oldest first."""
        with self._site.open_home() as opener:
            return [promotion_from_row(row) for row in PromotionRows(opener.open_home().store.catalog).list()]

    def sweep(self, *, force: bool = False) -> PromotionSweep:
        """Reverse or finish crashed promotions, and remove leftovers. Those are builds, replaced directories, and the
        outputs of finished promotions.

        Old directories that are in use, or have changed since the swap, stay, unless ``force``. It removes only
        directories that the catalog lists as ours, and that are private and the user's own. Promotions in progress are
        skipped.
        """
        settled: list[str] = []
        removed: list[str] = []
        kept: list[str] = []
        busy: list[str] = []
        with self._site.open_home() as opener:
            forbid_inside_run(opener.open_home(), "a sweep")
            rows = PromotionRows(opener.store().catalog).list()
        for row in rows:
            try:
                with hold_production(self._site, row.workspace, wait=0, who=row.id), self._site.open_job(row.id) as job:
                    if job.row.phase != "ended":
                        self._settle(job)
                        settled.append(row.id)
                    container = job.facts.container
                    there = container and os.path.lexists(parse_display(container))
                    if there and job.facts.kept and not force:
                        _clear(job)
                    elif there:
                        build_directory.remove(job)
                    if there and os.path.lexists(parse_display(container)):
                        kept.append(container)
                    else:
                        removed += [container] if there else []
                        remove_whole(job.folder)
            except LockedError:
                busy.append(row.id)
            except (HoldfastError, OSError) as error:
                _LOG.warning("the promotion %s cannot be swept away: %s", row.id, error)
        return PromotionSweep(settled, removed, kept, busy)

    def _run(self, lease: ProductionLease, promotion: str) -> Promotion:
        self._site.stop.clear()
        with self._site.open_job(promotion) as job:
            hushed = _without_auto_save(job.context)
        with hushed:
            answer = PromotionRun(self._site, lease, promotion, self._tell).run()
        found = self.get(promotion)
        if found.row.phase != "ended":
            raise HoldfastError(
                f"the promotion {promotion} has stopped: {answer.message}",
                hint=answer.recovery or f"`holdfast promote --resume {promotion}` goes on",
                code="promotion_stopped",
            )
        return found

    def _settle_others(self, row: PromotionRow) -> None:
        """Reverse or finish other interrupted promotions to the same production, whose lease is held."""
        with self._site.open_home() as opener:
            others = PromotionRows(opener.store().catalog).list(row.workspace, unfinished=True)
        for other in others:
            if other.id != row.id:
                with self._site.open_job(other.id) as job:
                    self._settle(job)

    def _clear_old(self, row: PromotionRow) -> None:
        """Remove old directories that were kept for a process that does not use them any more."""
        for one in self.list():
            if one.row.workspace == row.workspace and one.row.phase == "ended" and one.facts.kept:
                with self._site.open_job(one.row.id) as job:
                    _clear(job)

    def _settle(self, job: PromotionJob) -> None:
        """Bring production to its old or its new state: whichever is nearer."""
        if job.row.phase in ("swapping", "swapped") and (job.row.phase == "swapped" or swap.has_begun(job)):
            _LOG.warning("the promotion %s was cut short after the swap, and is finished now", job.row.id)
            swap.swap(job) if job.row.phase == "swapping" else swap.record(job)
            if job.row.phase == "swapped":
                cleanup.finish_promotion(job)
                return
        _LOG.warning("the promotion %s was cut short, and is taken back now", job.row.id)
        cleanup.discard_build(
            job,
            PromotionAnswer(
                result="failed",
                code="cut_short",
                message="it was cut short, and taken back by a later command",
                recovery="Fork removed. Production unchanged.",
            ),
        )


def _clear(job: PromotionJob) -> None:
    """Try again to remove the old directory of a promotion that has ended."""
    try:
        cleanup.remove_old(job)
        job.save()
    except HoldfastError as error:
        _LOG.warning("%s is not removed: %s", job.facts.container, error.message)


def _resolve(
    opener: Opener, fork: str | bytes | os.PathLike[str], to: str | bytes | os.PathLike[str] | ProductionRef | None
) -> tuple[Context, str, CheckpointId]:
    """Production, the workspace that is promoted (empty for none), and its state."""
    from holdfast.engine.history.checkpoint import create_checkpoint
    from holdfast.engine.history.revisions import resolve_name
    from holdfast.model.command_results import CheckpointRequest

    directory = os.fsencode(fork)
    if isinstance(to, ProductionRef):
        production = open_named(opener, to.workspace, to.place)
        promoted = production.catalog.checkpoint(CheckpointId(os.fsdecode(directory)))
        return production, "" if promoted.workspace == to.workspace else promoted.workspace, promoted.id
    if os.path.isdir(directory):
        side = opener.open(directory)
        theirs = create_checkpoint(side, CheckpointRequest(kind="auto")).checkpoint.id
        if to is None:
            origin = side.workspace.source
            if origin is None:
                raise UsageError(
                    f"{display(side.workspace.path)} is no fork", hint="--to says which workspace is production"
                )
            production = _production(opener, side, origin)
        else:
            production = opener.open(os.fsencode(to))
        if production.workspace.id == side.workspace.id:
            raise UsageError(
                f"{display(side.workspace.path)} cannot be promoted to itself",
                hint="name the directory of a fork of it",
            )
        return production, side.workspace.id, theirs
    production = opener.open(os.fsencode(b"." if to is None else to))
    try:
        theirs = resolve_name(production, directory.decode())
    except UnicodeDecodeError:
        raise NotFoundError(f"there is no directory {display(directory)}", code="no_such_path") from None
    owner = production.catalog.checkpoint(theirs).workspace
    return production, "" if owner == production.workspace.id else owner, theirs


def _production(opener: Opener, side: Context, origin: CheckpointId) -> Context:
    try:
        return opener.open_known(side.catalog.checkpoint(origin).workspace)
    except NotFoundError as error:
        raise NotFoundError(
            f"the origin of the fork {display(side.workspace.path)} cannot be found: {error.message}",
            hint="--to says which workspace is production",
            code=error.code,
        ) from None


def _decided(context: Context, decided: Sequence[DecidedFile]) -> list[DecidedFile]:
    """The decisions, each for the shown versions; a version that another merge shows before the plan does not count."""
    if sum(len(one.content or b"") for one in decided) > _MOST_DECIDED:
        raise UsageError(
            f"the resolutions of a promotion may have {_MOST_DECIDED >> 20} MiB in all",
            hint="commit the larger ones in the fork",
        )
    found: list[DecidedFile] = []
    for one in decided:
        path = check_path(parse_display(one.path))
        shown = one.version or last_shown(context.store, context.workspace.id, path)
        found.append(DecidedFile(display(path), one.prefer, one.content, shown_version(path, shown)))
    if len({one.path for one in found}) != len(found):
        raise UsageError("a file is decided twice")
    return found


def _spec(
    context: Context,
    author: str,
    message: str,
    command: str,
    place: tuple[int, int] | None,
    decided: list[DecidedFile],
) -> PromotionSpec:
    of, isolation = context.settings.promote, context.settings.isolation
    if context.misconfigured is not None:
        raise context.misconfigured
    return PromotionSpec(
        path=display(context.workspace.path),
        setup=list(of.setup),
        build=list(of.build),
        start=list(of.start),
        health=list(of.health),
        restart=list(of.restart),
        timeout=of.timeout,
        health_timeout=of.health_timeout,
        health_interval=of.health_interval,
        memory=of.memory,
        max_output_bytes=of.max_output_bytes,
        isolation=of.isolation,
        network=of.network,
        tries=of.tries,
        author=author or context.settings.identity.author,
        message=message[:_MOST_SAID],
        command=command[:_MOST_SAID],
        hidden=list(isolation.hidden),
        visible=list(of.show),
        writable=list(isolation.writable),
        environment=list(isolation.environment),
        place=place,
        provider=of.provider,
        resolutions=decided,
    )


def check_id(name: str) -> str:
    """``name`` if a promotion may have it as its id, or it is empty; raises `UsageError`."""
    if name and not (len(name) == _ID_DIGITS and set(name) <= set("0123456789abcdef")):
        raise UsageError(
            f"{name[:80]!r} is no id of a promotion", hint=f"it has {_ID_DIGITS} hex digits, in lower case"
        )
    return name


def _unfinished(rows: PromotionRows, name: str) -> PromotionRow:
    if name:
        if not all(letter in "0123456789abcdef" for letter in name):
            raise NotFoundError(f"no promotion {name}", hint="list them: holdfast promote --list", code="no_promotion")
        found = rows.by_prefix(name)
        if not found:
            raise NotFoundError(f"no promotion {name}", hint="list them: holdfast promote --list", code="no_promotion")
    else:
        found = rows.list(unfinished=True)
        if not found:
            raise NotFoundError("no promotion was cut short", code="nothing_unfinished")
    if len(found) > 1:
        raise UsageError(
            f"{len(found)} promotions match: {', '.join(row.id for row in found)}", hint="name one of them"
        )
    if found[0].phase == "ended":
        raise RefusedError(
            f"the promotion {found[0].id} has ended: {found[0].result}", code="promotion_ended", hint="begin a new one"
        )
    return found[0]


def promotion_from_row(row: PromotionRow) -> Promotion:
    """A promotion, from its row. Raises `FormatError`."""
    return Promotion(row, decode_facts(row.facts), decode_spec(row.spec).path)


def _without_auto_save(context: Context) -> AbstractContextManager[None]:
    """Nothing is saved by itself while it builds: not even in production, which is only copied."""
    watcher = None
    with suppress(HoldfastError):
        watcher = connect_watcher(context)
    return nullcontext() if watcher is None else watcher.hush()


def _message(fork: str | bytes | os.PathLike[str], to: object, message: str) -> str:
    """The log's message: the fork, and the reason. With a `ProductionRef`, the given message has both."""
    if message and isinstance(to, ProductionRef):
        return message
    return ": ".join(filter(None, (f"promoted {_named(fork)}", message)))


def _named(fork: str | bytes | os.PathLike[str]) -> str:
    return display(os.fsencode(fork))


def _nothing(_: str) -> None:
    return
