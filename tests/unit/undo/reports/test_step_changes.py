"""What a step did to each path."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.testing.tree_actor import InterceptedActor
from holdfast.undo.reports.step_changes import path_changes

from ..conftest import Bench, redo, undo


def both(*work: Callable[[InterceptedActor], object]) -> Callable[[InterceptedActor], None]:
    def run(actor: InterceptedActor) -> None:
        for one in work:
            one(actor)

    return run


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (lambda actor: actor.write(b"new", b""), [(b"new", "added", None)]),
        (
            both(lambda actor: actor.link(b"file", b"new"), lambda actor: actor.write(b"new", b"1", at=0)),
            [(b"file", "modified", None), (b"new", "added", None)],
        ),
        (lambda actor: actor.link(b"file", b"new"), [(b"new", "added", None)]),
        (lambda actor: actor.write(b"file", b""), [(b"file", "modified", None)]),
        (lambda actor: actor.chmod(b"file", 0o600), [(b"file", "metadata", None)]),
        (lambda actor: actor.unlink(b"file"), [(b"file", "deleted", None)]),
        (lambda actor: actor.rename(b"file", b"new"), [(b"new", "renamed", b"file")]),
        (
            lambda actor: actor.rename(b"file", b"other"),
            [(b"other", "deleted", None), (b"other", "renamed", b"file")],
        ),
        (
            both(lambda actor: actor.unlink(b"other"), lambda actor: actor.rename(b"file", b"other")),
            [(b"other", "deleted", None), (b"other", "renamed", b"file")],
        ),
        (
            both(lambda actor: actor.rename(b"file", b"new"), lambda actor: actor.write(b"file", b"")),
            [(b"file", "added", None), (b"new", "renamed", b"file")],
        ),
        (
            both(
                lambda actor: actor.rename(b"dir", b"moved"),
                lambda actor: actor.mkdir(b"dir"),
                lambda actor: actor.rename(b"moved", b"dir/moved"),
            ),
            [(b"dir", "added", None), (b"dir/moved", "renamed", b"dir")],
        ),
        (
            both(
                lambda actor: actor.rename(b"dir", b"moved"),
                lambda actor: actor.unlink(b"moved/in"),
                lambda actor: actor.write(b"moved/in", b""),
            ),
            [(b"moved", "renamed", b"dir"), (b"moved/in", "modified", None)],
        ),
        (
            lambda actor: actor.exchange(b"file", b"other"),
            [(b"file", "renamed", b"other"), (b"other", "renamed", b"file")],
        ),
        (both(lambda actor: actor.write(b"new", b""), lambda actor: actor.unlink(b"new")), []),
        (
            both(lambda actor: actor.unlink(b"file"), lambda actor: actor.write(b"file", b"")),
            [(b"file", "modified", None)],
        ),
        (
            both(lambda actor: actor.write(b"new", b""), lambda actor: actor.rename(b"new", b"file")),
            [(b"file", "modified", None)],
        ),
        (
            both(lambda actor: actor.write(b"dir/in", b""), lambda actor: actor.rename(b"dir", b"moved")),
            [(b"moved", "renamed", b"dir"), (b"moved/in", "modified", None)],
        ),
        (
            both(lambda actor: actor.rename(b"file", b"new"), lambda actor: actor.rename(b"new", b"file")),
            [],
        ),
    ],
)
def test_changes(
    bench: Bench, work: Callable[[InterceptedActor], object], expected: list[tuple[bytes, str, bytes | None]]
) -> None:
    for name in ("file", "other"):
        (bench.tree / name).write_bytes(b"content")
    (bench.tree / "dir").mkdir()
    (bench.tree / "dir/in").write_bytes(b"content")
    with bench.keeper() as log:
        step = bench.step(log, work)
        for backward, change in ((False, undo), (True, redo)):
            found = path_changes(log.read(step).records, backward=backward)
            assert [(each.path, each.change, each.source) for each in found] == expected
            change(log, [step])
