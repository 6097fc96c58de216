"""Three lines of work with random edits, renames, deletions and merges, against what a person would expect.

Every line that is ever written is unique. Each line of work knows of what was written and of what was deleted, and a
merge knows all that both know: what was written and not deleted must be there, once, and nothing else. Where it cannot
be told, the merge has to say so, and a person decides; nothing is lost silently, whatever was merged into what before.
Names I3 and I6: what was merged is undone.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import holdfast
from holdfast.engine.merging.fork_merge import ForkMerge
from holdfast.engine.merging.stacked_plan import Resolution
from holdfast.engine.workspace.workspace import Workspace
from holdfast.testing.crash_points import without_syncs

LINES = st.sampled_from(["production", "one", "two"])
NUMBERS = st.integers(0, 1000)


@dataclass
class Line:
    """One line of work as it should be."""

    root: Path
    written: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)


class Model(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp(prefix="holdfast-merge-model-"))
        self.flags = {"merge.ladder": ["structure", "text", "person"]}
        self.count = 0
        self.lines: dict[str, Line] = {}
        self.merges = 0

    @initialize()
    def begin(self) -> None:
        self.fast = without_syncs()
        self.fast.__enter__()
        production = Line(self.base / "production")
        production.root.mkdir()
        for name in ("a", "b", "c", "d/e"):
            (production.root / name).parent.mkdir(exist_ok=True)
            self.put(production, production.root / name, [self.new() for _ in range(8)])
        with self.open("production", production) as workspace:
            workspace.checkpoint()
            for name in ("one", "two"):
                workspace.fork("@", self.base / name)
                self.lines[name] = Line(self.base / name, set(production.written), set(production.deleted))
        self.lines["production"] = production

    def teardown(self) -> None:
        if self.lines:
            with self.open("production") as workspace:
                assert workspace.verify(read_data=True).ok
            self.fast.__exit__(None, None, None)
        shutil.rmtree(self.base)

    # -- doing things ------------------------------------------------------------------------------------------------

    def open(self, name: str, line: Line | None = None) -> Workspace:
        line = line or self.lines[name]
        return holdfast.init(line.root, home=self.base / "home", flags=self.flags)

    def new(self) -> str:
        self.count += 1
        return f"line {self.count} of all"

    @staticmethod
    def put(line: Line, path: Path, content: list[str]) -> None:
        before = set(path.read_text().splitlines()) if path.exists() else set()
        path.write_text("".join(f"{one}\n" for one in content))
        line.written |= set(content)
        line.deleted |= before - set(content)

    def chosen(self, name: str, number: int) -> tuple[Line, Path | None]:
        line = self.lines[name]
        files = sorted(path for path in line.root.rglob("*") if path.is_file())
        return line, files[number % len(files)] if files else None

    @rule(name=LINES, number=NUMBERS, at=NUMBERS, what=st.sampled_from(["insert", "delete", "replace", "rewrite"]))
    def edit(self, name: str, number: int, at: int, what: str) -> None:
        line, path = self.chosen(name, number)
        if path is None:
            return
        content = path.read_text().splitlines()
        at %= len(content) + 1
        if what == "insert":
            content.insert(at, self.new())
        elif what == "rewrite":
            content = [self.new()]
        elif at < len(content):
            content[at : at + 1] = [self.new()] if what == "replace" else []
        self.put(line, path, content or [self.new()])

    @rule(name=LINES, number=NUMBERS)
    def add(self, name: str, number: int) -> None:
        line = self.lines[name]
        path = line.root / f"new{number % 3}"
        if not path.exists():
            self.put(line, path, [self.new(), self.new()])

    @rule(name=LINES, number=NUMBERS)
    def remove(self, name: str, number: int) -> None:
        line, path = self.chosen(name, number)
        if path is not None:
            line.deleted |= set(path.read_text().splitlines())
            path.unlink()

    @rule(name=LINES, number=NUMBERS, to=st.integers(0, 5))
    def rename(self, name: str, number: int, to: int) -> None:
        line, path = self.chosen(name, number)
        target = line.root / f"renamed{to}"
        if path is not None and not target.exists():
            path.rename(target)

    @rule(name=LINES, number=NUMBERS, mode=st.sampled_from([0o600, 0o755]))
    def chmod(self, name: str, number: int, mode: int) -> None:
        _, path = self.chosen(name, number)
        if path is not None:
            path.chmod(mode)

    @rule(name=LINES)
    def a_directory_for_a_file(self, name: str) -> None:
        line = self.lines[name]
        if (line.root / "a").is_file():
            line.deleted |= set((line.root / "a").read_text().splitlines())
            (line.root / "a").unlink()
            (line.root / "a").mkdir()
            self.put(line, line.root / "a" / "inner", [self.new()])

    @rule(name=LINES)
    def save(self, name: str) -> None:
        with self.open(name) as workspace:
            workspace.checkpoint()

    @rule(name=LINES, back=st.integers(1, 3))
    def forget(self, name: str, back: int) -> None:
        with self.open(name) as workspace:
            try:
                workspace.forget([f"@-{back}"])
            except (holdfast.NotFoundError, holdfast.RefusedError):
                pass

    @rule(into=LINES, what=LINES, undo=st.sampled_from([False, False, True]))
    def merge(self, into: str, what: str, undo: bool) -> None:
        if into == what:
            return
        ours, theirs = self.lines[into], self.lines[what]
        before = held(ours.root)
        with self.open(into) as workspace:
            found = workspace.merge(str(theirs.root))
            decided: set[str] = set()
            content: dict[bytes, bytes] = {}
            if found.plan.overlapping:
                assert held(ours.root) == before, "nothing is changed as long as something is open"
                decided, content = self.decide(found, ours.root, theirs.root)
                if any(one.why == "in_the_way" for one in found.plan.overlapping):
                    return
                found = workspace.merge(
                    str(theirs.root),
                    resolutions={path: Resolution(content=one) for path, one in content.items()},
                )
                if found.plan.overlapping:  # (What was decided is where the other has a directory.)
                    assert {one.why for one in found.plan.overlapping} == {"in_the_way"}
                    assert held(ours.root) == before
                    return
            self.merges += 1
            known = (set(ours.written), set(ours.deleted))
            ours.written |= theirs.written | {one for each in content.values() for one in each.decode().splitlines()}
            # (What was decided of one name may be there under another still, if both have renamed to it.)
            still = {one for text in held(ours.root).values() for one in text.splitlines()}
            ours.deleted |= theirs.deleted | (decided - still)
            self.compare(into)
            if undo and found.restored is not None:
                workspace.undo()
                ours.written, ours.deleted = known
                assert held(ours.root) == before

    def decide(self, found: ForkMerge, here: Path, there: Path) -> tuple[set[str], dict[bytes, bytes]]:
        """New content for each file that is open, and all lines of it that are gone by that."""
        gone: set[str] = set()
        content: dict[bytes, bytes] = {}
        for one in found.plan.overlapping:
            for root, name in ((here, one.conflict.path), (there, one.conflict.there)):
                path = root / os.fsdecode(name)
                if path.is_file():
                    gone |= set(path.read_text().splitlines())
            content[one.path] = f"{self.new()}\n".encode()
        return gone, content

    # -- what must hold ----------------------------------------------------------------------------------------------

    def compare(self, name: str) -> None:
        line = self.lines[name]
        lines = Counter(one for text in held(line.root).values() for one in text.splitlines())
        assert set(lines) == line.written - line.deleted
        assert max(lines.values(), default=1) == 1

    @invariant()
    def every_line_of_work_is_what_it_should_be(self) -> None:
        for name in self.lines:
            self.compare(name)


def held(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}


TestModel = Model.TestCase
TestModel.settings = settings(
    max_examples=25,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
