"""The virtual machines by the page: the tree of the states of their sessions, and what runs."""

from __future__ import annotations

import os
import re
import time
from html import unescape
from pathlib import Path

import pytest

from holdfast.engine.running.machine_state import machine_directory, noted
from holdfast.engine.sessions.holder.lock import machine_note_path
from holdfast.engine.sessions.registry import Sessions
from holdfast.model.machine import RunningMachine

from .conftest import SCRIPT


@pytest.fixture
def family(growing, home):
    """A session with a machine, and a fork of it; the page."""
    with Sessions(home=home) as sessions:
        with sessions.start(growing.tree, "built", isolation="vm") as session:
            (growing.tree / "n").write_text("1")
            session.checkpoint(f"installed {SCRIPT}")
            fork = session.fork("tried")
            (growing.tree / "n").write_text("2")
            session.checkpoint("later")
        with sessions.open("tried") as tried:
            (Path(os.fsdecode(fork.root)) / "n").write_text("3")
            tried.checkpoint("of the fork")
    return growing


def rows(text):
    """The text of each row."""
    found = re.findall(r'<li class="row[^"]*" id="machine-[^>]*>(.*?)</li>', text, re.DOTALL)
    return [" ".join(unescape(re.sub(r"<[^>]*>", " ", row)).split()) for row in found]


def test_there_is_no_such_page_in_the_navigation_without_machines(growing, home):
    assert 'href="' + growing.access.base + '/machines"' not in growing.text("")
    assert "No virtual machine of this workspace runs" in growing.text("machines")
    with Sessions(home=home) as sessions, sessions.start(growing.tree, "plain"):
        pass
    assert "/machines" not in growing.text("")


def test_the_states_of_sessions_are_a_tree(family):
    assert 'href="' + family.access.base + '/machines"' in family.text("")
    text = family.text("machines")
    assert SCRIPT not in text
    found = rows(text)
    assert [row.split()[3] for row in found] == ["tried", "built", "tried", "built", "built"]
    assert "stopped" in found[0]
    assert "of the fork" in found[0]
    assert "spawned from built" in found[2]
    assert "stopped" not in found[2], "the session has gone on"
    assert text.count("<svg class") == len(found)
    assert text.count('<path class="lane') == 1, "two lines meet in the state that was forked"
    for address in family.links(text):
        assert family.get(address).status_code == 200, address
    assert "<html" not in family.text("machines", hx_request="true")


def running(site):
    """A machine of the workspace, noted as one that runs."""
    machine = RunningMachine(
        run="0123456789ab",
        pid=os.getpid(),
        image="default",
        accelerator="tcg",
        filesystem="virtiofs",
        persistent=True,
        started_at=time.time(),
    )
    return noted(machine_directory(site.workspace.folder), machine)


def test_the_machine_of_a_session_is_shown_where_the_session_stands(family, home):
    (tenant,) = (home / "sessions").iterdir()
    note = Path(os.fsdecode(machine_note_path(bytes(tenant / "built.lock"))))
    note.write_text("0123456789ab")
    with running(family):
        text = family.text("machines")
        assert "Machines of runs" not in text
        (row,) = [one for one in rows(text) if "image default" in one]
        assert row.split()[3] == "built"
        assert "runs image default, emulated, files by virtiofs" in row
        assert "later" in row
    note.unlink()


def test_a_machine_that_runs_for_a_run_is_shown_while_it_does(growing):
    with running(growing):
        text = growing.text("machines")
        assert 'href="' + growing.access.base + '/machines"' in text
        assert "run 0123456789ab" in text
        assert "image default, emulated, files by virtiofs" in text
        assert "its disk stays" in text
    assert "run 0123456789ab" not in growing.text("machines")
