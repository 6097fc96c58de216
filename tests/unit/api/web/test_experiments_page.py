"""Experiments by the page: looked at while they run, compared, adopted, and taken back."""

from __future__ import annotations

import re
import threading
from contextlib import contextmanager
from html import unescape

import pytest

from holdfast.engine.experiments.attempts import Attempt, Order
from holdfast.engine.experiments.experiment import experiment
from holdfast.engine.sessions.registry import Sessions

from ....waiting import wait_until
from .conftest import SCRIPT
from .test_acts import Form, done, form_of


@pytest.fixture
def make(home):
    """Makes the sessions of the home."""
    return lambda: Sessions(home=home)


def tried(make, site, *commands, **options):
    """An experiment that is over, and whose forks stay; its id."""
    attempts = [Attempt(at, f"way {at}", command) for at, command in enumerate(commands, 1)]
    order = Order(attempts, keep=True, **options)
    with make() as sessions, sessions.start(site.tree) as session, experiment(make, session, order) as found:
        return found.comparison.experiment


SCORED = {"measure": "score", "score": "wc -c < n"}


def columns(text):
    """The text of each attempt's column, by its number."""
    found = re.findall(r'<li class="attempt[^"]*" id="attempt-\w+-(\d+)"[^>]*>(.*?)</li>', text, re.DOTALL)
    return {int(number): unescape(re.sub(r"<[^>]*>", " ", column)) for number, column in found}


def test_attempts_stand_side_by_side_the_best_first(growing, make):
    name = tried(make, growing, "echo long > n", "echo s > n; echo said; rm -f x", "echo why >&2; exit 3", **SCORED)
    text = growing.text("experiments")
    found = columns(text)
    assert list(found) == [3, 2, 1], "what is unchanged has one byte"
    assert "3 attempts, 3 ended, 2 succeeded" in text
    assert "failed, exit 3" in found[3]
    assert "why" in found[3]
    assert "Adopt" not in found[3], "it has changed nothing"
    assert "said" in found[2]
    assert re.search(r"score\s+2\s", found[2])
    assert re.search(r"score\s+5\s", found[1])
    assert "~1" in found[1]
    assert growing.text(f"experiments?of={name}") != ""
    for address in growing.links(text):
        assert growing.get(address).status_code in (200, 303), address


def test_an_attempt_is_adopted_once_and_taken_back(growing, make):
    name = tried(make, growing, "echo one > n", "echo two > n; echo new > made", measure="duration")
    before = (growing.tree / "n").read_text()
    text = unescape(growing.text(f"act/adopt?experiment={name}&attempt=2"))
    assert "Adopt way 2" in text
    assert "2 files would be written, 0 would be deleted." in text
    assert (growing.tree / "n").read_text() == before, "looking changes nothing"
    form = Form(growing, text)
    said = done(growing, form.send())
    assert "Adopted way 2" in said
    assert 'class="button way-back"' in said
    assert (growing.tree / "made").read_text() == "new\n"
    done(growing, form.send())
    rows = growing.text("")
    assert f"adopted way 2 of the experiment {name}" in rows
    done(growing, form_of(growing, "act/undo").send())
    assert (growing.tree / "n").read_text() == before
    assert not (growing.tree / "made").exists()


def test_what_has_changed_since_is_not_lost(growing, make):
    name = tried(make, growing, "echo one > n")
    form = form_of(growing, f"act/adopt?experiment={name}&attempt=1")
    (growing.tree / "mine").write_text("mine")
    said = done(growing, form.send())
    assert "has changed since the attempts began" in said
    assert "holdfast session merge" in said
    assert (growing.tree / "n").read_text() == "0"
    assert (growing.tree / "mine").exists()
    assert growing.get(f"act/adopt?experiment={name}&attempt=1").status_code == 409


def test_a_session_of_another_or_one_that_is_open_is_left_alone(growing, make, home):
    name = tried(make, growing, "echo one > n")
    page = f"act/adopt?experiment={name}&attempt=1"
    with make() as sessions, sessions.open(sessions.list(bytes(growing.tree))[0].id):
        refused = growing.get(page)
        assert refused.status_code == 409
        assert "is open in another process" in refused.text
    name = tried(lambda: Sessions(home=home, agent="robot"), growing, "echo two > n")
    refused = growing.get(f"act/adopt?experiment={name}&attempt=1")
    assert refused.status_code == 409
    assert "is robot&#39;s, and not shared with" in refused.text


def test_what_no_checkpoint_holds_is_named_before(growing, make, home):
    (home / "config.toml").write_text('[capture]\nmax_file_bytes = "64KiB"\n')
    name = tried(make, growing, "head -c 70000 /dev/zero > large; echo one > n")
    text = unescape(growing.text(f"act/adopt?experiment={name}&attempt=1"))
    assert "stay in the fork alone: large." in text


def test_what_is_gone_is_said(growing, make):
    assert "No experiment runs" in growing.text("experiments")
    name = tried(make, growing, "echo one > n")
    with make() as sessions:
        for one in sessions.list():
            if one.purpose == "fork":
                sessions.delete(one.id)
    assert "its forks are gone" in growing.text(f"experiments?of={name}")
    assert growing.get(f"act/adopt?experiment={name}&attempt=1").status_code == 404
    assert growing.get("act/adopt").status_code == 404


@contextmanager
def running(make, site, *commands, **options):
    """An experiment on a thread, whose commands wait for the file ``go`` beside the tree."""
    ended = threading.Thread(target=tried, args=(make, site, *commands), kwargs=options)
    ended.start()
    try:
        yield
    finally:
        (site.tree.parent / "go").touch()
        ended.join()


def until(site, said):
    """The page, once it says that."""
    wait_until(lambda: said in site.text("experiments", hx_request="true"), limit=60)
    return site.text("experiments", hx_request="true")


def test_an_attempt_is_seen_while_it_runs_and_cannot_be_adopted_yet(growing, make):
    wait = f"while [ ! -e {growing.tree.parent}/go ]; do sleep 0.1; done"
    with running(make, growing, f"echo begun; {wait}; echo one > n", "echo two > n", parallel=1):
        until(growing, "<pre>begun</pre>")
        text = until(growing, 'data-phase="waiting"')
        found = columns(text)
        assert "running" in found[1]
        assert "waiting" in found[2]
        assert "Adopt" not in text
        (name,) = re.findall(r'id="experiment-(\w+)"', text)
        refused = growing.get(f"act/adopt?experiment={name}&attempt=1")
        assert refused.status_code == 409
        assert "is not over" in refused.text
    text = until(growing, "is over")
    assert "<pre>begun</pre>" in text
    assert "<html" not in text


def test_a_command_is_shown_as_it_was_given(growing, make):
    name = tried(make, growing, r"printf '\\\\n\ttwo' > n", r"printf '\\\\' > n # zwölf")
    text = unescape(growing.text("experiments"))
    assert r"printf '\\\\n\ttwo' > n" in text
    assert r"printf '\\\\' > n # zwölf" in text
    done(growing, form_of(growing, f"act/adopt?experiment={name}&attempt=2").send())


def test_texts_of_an_attempt_run_nothing(growing, make):
    tried(make, growing, f"echo '{SCRIPT}' > n; echo '{SCRIPT}'; echo '{SCRIPT}' >&2")
    text = growing.text("experiments")
    assert SCRIPT not in text
    assert text.count("&lt;script&gt;") >= 2
    page = growing.text(next(one for one in growing.links(text) if "act/adopt" in one))
    assert SCRIPT not in page
