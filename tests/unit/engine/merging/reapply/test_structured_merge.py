"""The rung ``structure``: by key, with the layout as it was, or not at all."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.engine.merging.reapply._strategy import Declined, NewContent, ReapplyTask, RungOutcome
from holdfast.engine.merging.reapply._structured_merge import StructureRung

from .....sampling import some


def applied(path: str, base: str, ours: str, theirs: str) -> RungOutcome:
    task = ReapplyTask(path.encode(), "content", ours.encode(), base.encode(), theirs.encode(), [1], {})
    return StructureRung().apply(task)


def merged(path: str, base: str, ours: str, theirs: str) -> str:
    found = applied(path, base, ours, theirs)
    assert isinstance(found, NewContent), found
    assert found.content is not None
    return found.content.decode()


def dump(value: object, indent: int | str | None = 2) -> str:
    return json.dumps(value, indent=indent) + "\n"


# -- JSON -------------------------------------------------------------------------------------------------------------

PACKAGE: dict[str, Any] = {"name": "app", "dependencies": {"left": "^1.0.0", "right": "^2.0.0"}, "version": 1.10}


@pytest.mark.parametrize("indent", [2, 4, "\t", None])
def test_two_that_add_dependencies_both_have_them(indent) -> None:
    ours = {**PACKAGE, "dependencies": {**PACKAGE["dependencies"], "ours": "1"}}
    theirs = {**PACKAGE, "dependencies": {**PACKAGE["dependencies"], "theirs": "1"}}
    both = {**PACKAGE, "dependencies": {**PACKAGE["dependencies"], "ours": "1", "theirs": "1"}}
    found = merged("web/package.json", *(dump(one, indent) for one in (PACKAGE, ours, theirs)))
    assert found == dump(both, indent)


@pytest.mark.parametrize(
    ("base", "ours", "theirs", "both"),
    [
        ('{"a":1,"l":[1,2]}', '{"a":1,"l":[1,2],"b":2}', '{"a":3,"l":[1,2]}\n', '{"a":3,"l":[1,2],"b":2}'),
        ('{"a": 1, "c": {}}', '{"a": 1, "b": 2, "c": {}}', '{"a": 3, "c": {}}', '{"a": 3, "b": 2, "c": {}}'),
        ('{ "a": { "x": 1 } }\n', '{ "a": { "x": 2 } }\n', '{"a":{"x":1,"y":[]}}\n', '{ "a": { "x": 2, "y": [] } }\n'),
        # Blanks that are mixed become even, as most of them are.
        ('{"a":1}', '{"a":1, "b":2}', '{"a":1,"c":3}', '{"a":1,"b":2,"c":3}'),
        ('{"a": 1}', '{"a": 1, "b":2, "d": 4}', '{"a":1,"c":3}', '{"a": 1, "b": 2, "d": 4, "c": 3}'),
        ('{"a": [1,2], "b": 1}', '{"a": [1,2], "b": 2}', '{"a": [1,2,"ä"], "b": 1}', '{"a": [1, 2, "ä"], "b": 2}'),
    ],
)
def test_an_object_in_one_line_is_put_together_in_one_line(base: str, ours: str, theirs: str, both: str) -> None:
    assert merged("x.json", base, ours, theirs) == both


def test_numbers_letters_and_the_end_stay_as_they_are_written() -> None:
    base = '{\n  "a": 1.10,\n  "b": 1e5,\n  "ä": "ö",\n  "big": 123456789012345678901234567890\n}'
    assert merged("x.json", base, base.replace("1e5", "2e5"), base.replace('"ö"', '"o"')) == base.replace(
        "1e5", "2e5"
    ).replace('"ö"', '"o"')


@pytest.mark.parametrize(
    ("base", "ours", "theirs", "why"),
    [
        ('{"a": 1}', '{"a": 2}', '{"a": 3}', "both have changed a"),
        ('{"a": 1}', "{}", '{"a": 3}', "both have changed a"),
        ("{}", '{"a": 2}', '{"a": 3}', "both have changed a"),
        ("{}", '{"a": 1}', '{"a": true}', "both have changed a"),
        ('{"a": [1]}', '{"a": [1, 2]}', '{"a": [0, 1]}', "both have changed a"),
        ('{"a":1}', '{"a":1,\n"b":2}', '{"a":1,"c":3}', "layout"),
        ("[1]", "[1, 2]", "[0, 1]", "no JSON object"),
        ('{"a": 1, "a": 2}', '{"a": 3}', '{"a": 1}', "twice"),
        ("{", '{"a": 3}', '{"a": 1}', "no JSON"),
        ("[" * 100_000, "{}", '{"a": 1}', "no JSON|deeply"),
    ],
)
def test_what_is_not_certain_is_declined(base: str, ours: str, theirs: str, why: str) -> None:
    import re

    found = applied("x.json", base, ours, theirs)
    assert isinstance(found, Declined)
    assert re.search(why, found.reason), found.reason


VALUES = st.recursive(
    st.sampled_from([None, True, 0, 1, "x", "y", [], [1]]),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
TABLES = st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)


def expected(base, ours, theirs):
    """What a person would expect; raises KeyError where both have changed the same."""
    nothing = object()

    def same(one, other):
        return one is other or (
            one is not nothing
            and other is not nothing
            and json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
        )

    def pick(one, two, three):
        if same(three, one) or same(three, two):
            return two
        if same(two, one):
            return three
        if not all(isinstance(side, dict) for side in (one, two, three)):
            raise KeyError
        found = {}
        for key in {*one, *two, *three}:
            value = pick(*(side.get(key, nothing) for side in (one, two, three)))
            if value is not nothing:
                found[key] = value
        return found

    return pick(base, ours, theirs)


@settings(max_examples=150, deadline=None)
@given(TABLES, TABLES, TABLES)
def test_json_comes_together_as_a_person_would_expect(base, ours, theirs) -> None:
    found = applied("x.json", dump(base), dump(ours), dump(theirs))
    try:
        wanted = expected(base, ours, theirs)
    except KeyError:
        assert isinstance(found, Declined)
        return
    assert isinstance(found, NewContent)
    assert found.content is not None
    assert json.loads(found.content) == wanted


# -- lists of dependencies --------------------------------------------------------------------------------------------


def test_requirements_come_together_by_name() -> None:
    base = "# what we need\nflask==1.0\nrequests>=2\n\n-r other.txt\n"
    ours = base.replace("flask==1.0", "Flask==1.1  # faster")
    theirs = base.replace("requests>=2\n", "requests>=2\nnumpy\n")
    assert merged("requirements.txt", base, ours, theirs) == ours.replace("requests>=2\n", "requests>=2\nnumpy\n")
    assert isinstance(applied("requirements.txt", base, base, theirs), NewContent)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("a==2\n", "a==3\n"),
        ("", "a==3\n"),
        ("a==1\nb==1\n", "a==1\nB==2\n"),
        ("# here\na==1\n", "# there\na==1\n"),
        ("a==1\na==2\n", "a==1\nc\n"),
    ],
)
def test_requirements_that_both_have_changed_are_declined(ours: str, theirs: str) -> None:
    assert isinstance(applied("dev/requirements-dev.txt", "a==1\n", ours, theirs), Declined)


# -- TOML and YAML ----------------------------------------------------------------------------------------------------

PYPROJECT = """\
# the project
[project]
name = "app"   # its name
dependencies = [
  "flask>=1",
  "requests",  # for http
]

[tool.ruff]
line-length = 100
"""


def test_toml_keeps_comments_and_layout() -> None:
    pytest.importorskip("tomlkit", reason="needs the extra structure")
    ours = PYPROJECT.replace("line-length = 100", "line-length = 120  # wide")
    theirs = PYPROJECT.replace("[tool.ruff]\n", '[tool.ruff]\ntarget = "py311"\n').replace("line-length", "line-length")
    found = merged("pyproject.toml", PYPROJECT, ours, theirs)
    assert "line-length = 120  # wide" in found
    assert 'target = "py311"' in found
    assert "# the project" in found
    assert '"requests",  # for http' in found


def test_lists_of_dependencies_in_toml_come_together() -> None:
    tomlkit = pytest.importorskip("tomlkit", reason="needs the extra structure")
    ours = PYPROJECT.replace('"flask>=1"', '"flask>=2"')
    theirs = PYPROJECT.replace("# for http\n", '# for http\n  "numpy",\n')
    found = merged("pyproject.toml", PYPROJECT, ours, theirs)
    assert tomlkit.parse(found)["project"]["dependencies"] == ["flask>=2", "requests", "numpy"]
    assert "# for http" in found
    clash = PYPROJECT.replace('"flask>=1"', '"flask>=3"')
    assert isinstance(applied("pyproject.toml", PYPROJECT, ours, clash), Declined)


def test_toml_that_cannot_be_read_is_declined() -> None:
    pytest.importorskip("tomlkit", reason="needs the extra structure")
    assert isinstance(applied("a.toml", "a = 1\n", "a = \n", "a = 2\n"), Declined)
    assert isinstance(applied("a.toml", "a = 1\n", "a = 3\n", "a = 2\n"), Declined)


WORKFLOW = """\
# what runs
name: tests
on: [push]
jobs:
  one:
    runs-on: ubuntu  # cheap
    steps:
      - uses: checkout
      - run: "make"
"""


def test_yaml_keeps_comments_and_layout() -> None:
    pytest.importorskip("ruamel.yaml", reason="needs the extra structure")
    ours = WORKFLOW.replace("ubuntu  # cheap", "debian  # cheap")
    theirs = WORKFLOW.replace("name: tests\n", "name: all tests\n")
    found = merged(".github/workflows/tests.yaml", WORKFLOW, ours, theirs)
    assert found == ours.replace("name: tests\n", "name: all tests\n")
    clash = WORKFLOW.replace("ubuntu", "alpine")
    assert isinstance(applied("x.yml", WORKFLOW, ours, clash), Declined)


@pytest.mark.parametrize(
    "text", ["a: &x 1\nb: *x\n", "a:   1\n", "- 1\n", "a: [\n", "a: !!python/object:os.system {}\n"]
)
def test_yaml_whose_layout_or_sense_is_in_doubt_is_declined(text: str) -> None:
    pytest.importorskip("ruamel.yaml", reason="needs the extra structure")
    assert isinstance(applied("x.yml", text, text + "c: 1\n", text + "d: 1\n"), Declined)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["x.toml", "x.yaml"]),
    *[
        st.dictionaries(
            st.sampled_from("abc"),
            st.integers(0, 3) | st.dictionaries(st.sampled_from("xy"), st.integers(0, 2), min_size=1),
            max_size=3,
        )
    ]
    * 3,
)
def test_toml_and_yaml_come_together_as_a_person_would_expect(path: str, base, ours, theirs) -> None:
    tomlkit = pytest.importorskip("tomlkit", reason="needs the extra structure")
    yaml = pytest.importorskip("ruamel.yaml", reason="needs the extra structure")
    import tomllib
    from io import StringIO

    def write(value) -> str:
        if path == "x.toml":
            return tomlkit.dumps(value)
        out = StringIO()
        yaml.YAML(typ="rt", pure=True).dump(value, out)
        return out.getvalue()

    found = applied(path, write(base), write(ours), write(theirs))
    try:
        wanted = expected(base, ours, theirs)
    except KeyError:
        assert isinstance(found, Declined)
        return
    if isinstance(found, Declined):
        assert "layout" in found.reason or "put together" in found.reason or "no mapping" in found.reason
        return
    assert isinstance(found, NewContent)
    assert found.content is not None
    text = found.content.decode()
    assert (tomllib.loads(text) if path == "x.toml" else yaml.YAML(typ="safe", pure=True).load(text)) == wanted


@pytest.mark.parametrize("path", some(["a.py", "requirements.py", "package.json5", "notes.txt"], 2))
def test_other_files_are_declined(path: str) -> None:
    assert applied(path, "1\n", "2\n", "3\n") == Declined("the structure of such a file is not known")


def test_what_is_added_stands_where_it_was_put_if_lines_say_the_same() -> None:
    base = dump({"a": 1, "b": {"x": 1, "z": 1}, "c": 1, "d": 1})
    ours = dump({"a": 1, "b": {"x": 1, "y": 1, "z": 1}, "c": 1, "d": 1})
    theirs = dump({"a": 1, "b": {"x": 1, "z": 1}, "c": 1, "between": 1, "d": 1})
    found = merged("x.json", base, ours, theirs)
    assert found == dump({"a": 1, "b": {"x": 1, "y": 1, "z": 1}, "c": 1, "between": 1, "d": 1})
