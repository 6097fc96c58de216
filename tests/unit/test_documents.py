"""The documents say what is so: invariants and cases have tests that name them, and every link leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.files.ignore.rules import DEFAULT_CHECKPOINTIGNORE

PROJECT = Path(__file__).parents[2]
TESTS = PROJECT / "tests"
DOCUMENT = (PROJECT / "docs" / "internals/invariants.md").read_text()
ROWS = re.findall(r"^- \*\*(I?)(\d+) .* \(([^()]+)\)$", DOCUMENT, re.MULTILINE)


def names(kind: str, number: str) -> re.Pattern[str]:
    """How a test says that it shows an invariant or a case; a list (``I5, I6``, ``Cases 1 and 3``) names each."""
    if kind:
        return re.compile(rf"\bI{number}\b|_i{number}_")
    return re.compile(rf"\bcases? (?:\d+ and )?{number}\b", re.IGNORECASE)


@pytest.mark.parametrize(
    ("kind", "number", "files"), ROWS, ids=[f"{kind or 'case '}{number}" for kind, number, _ in ROWS]
)
def test_what_the_document_says_shows_it_names_it(kind: str, number: str, files: str) -> None:
    for file in re.findall(r"`([^`]+)`", files):
        text = (TESTS / file).read_text()
        if file.startswith("contract/"):
            text += "".join(path.read_text() for path in (PROJECT / "src/holdfast/testing").glob("*_contract.py"))
        assert names(kind, number).search(text), f"{file} does not name {kind or 'case '}{number}"


def test_every_invariant_that_is_named_is_in_the_document() -> None:
    known = {number for kind, number, _ in ROWS if kind}
    assert len(known) > 10
    for folder in (PROJECT / "src", TESTS):
        for path in folder.rglob("*.py"):
            for number in re.findall(r"\bI(\d+)\b|_i(\d+)_", path.read_text()):
                assert "".join(number) in known, f"{path} names I{''.join(number)}"


@pytest.mark.parametrize(
    "document", [*sorted(PROJECT.glob("*.md")), *sorted((PROJECT / "docs").rglob("*.md"))], ids=lambda path: path.name
)
def test_every_link_between_documents_leads_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text()):
        assert (document.parent / target).exists(), target


def test_the_default_exclusions_are_documented_as_they_are() -> None:
    shown = re.findall(
        r"^```gitignore\n(.*?)^```$", (PROJECT / "docs/reference/checkpoint.md").read_text(), re.MULTILINE | re.DOTALL
    )
    assert shown == [DEFAULT_CHECKPOINTIGNORE.decode()]


def test_every_page_is_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    waiting = [PROJECT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page not in reached:
            reached.add(page)
            links = re.findall(r"\]\(([^)#:]+\.md)(?:#[^)]*)?\)", page.read_text())
            waiting += [(page.parent / link).resolve() for link in links]
    assert sorted(set((PROJECT / "docs").rglob("*.md")) - reached) == []
