"""Where credentials are, and which of these places a box hides."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.sandbox.bubblewrap import HostFiles, mounts
from holdfast.sandbox.policy import FileAccess
from holdfast.sandbox.secret_places import secret_places

W = b"/home/u/project"
SSH, DOCKER, SOCKET = b"/home/u/.ssh", b"/home/u/.docker", b"/home/u/agent.sock"


def kinds(files: FileAccess) -> dict[bytes, str]:
    there = {b"/tmp", b"/run", SSH, DOCKER, b"/home/u", DOCKER + b"/plugins", W + b"/.ssh", b"/tmp/home/.ssh"}
    return {mount.path: mount.kind for mount in mounts(files, (), HostFiles(there, {SOCKET, b"/home/u/.netrc"}))}


def test_what_is_there_is_hidden_but_in_the_workspace_and_where_nothing_of_the_host_is() -> None:
    places = (SSH, SOCKET, b"/home/u/.aws", W + b"/.ssh", b"/tmp/home/.ssh", b"/run/agent", b"/dev/null", b"/")
    found = kinds(FileAccess(W, credentials=places))
    assert found == {W: "writable", b"/tmp": "scratch", b"/run": "empty", SSH: "empty", SOCKET: "blank"}


def test_what_is_let_in_is_seen_and_what_is_hidden_by_name_stays_so() -> None:
    assert SSH not in kinds(FileAccess(W, credentials=(SSH,), visible=(SSH,)))
    assert SSH not in kinds(FileAccess(W, credentials=(SSH,), visible=(b"/home/u",)))
    found = kinds(FileAccess(W, credentials=(DOCKER,), visible=(DOCKER + b"/plugins",)))
    assert (found[DOCKER], found[DOCKER + b"/plugins"]) == ("empty", "readable")
    found = kinds(FileAccess(W, hidden=(DOCKER,), credentials=(DOCKER,), visible=(DOCKER + b"/plugins",)))
    assert DOCKER + b"/plugins" not in found


def test_what_can_be_written_to_or_read_beside_the_workspace_shows_no_credentials() -> None:
    assert kinds(FileAccess(W, credentials=(SSH,), writable=(b"/home/u",)))[SSH] == "empty"
    assert kinds(FileAccess(W, credentials=(SSH,), writable=(SSH,)))[SSH] == "writable"
    assert (
        kinds(FileAccess(W, credentials=(b"/tmp/home/.ssh",), readable=(b"/tmp/home",)))[b"/tmp/home/.ssh"] == "empty"
    )


def test_the_user_s_those_that_variables_name_and_the_system_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    found = secret_places(
        {
            "SSH_AUTH_SOCK": "/x/agent",
            "KUBECONFIG": "/x/one:/x/two:relative",
            "DOCKER_HOST": "unix:///x/docker.sock",
            "DBUS_SESSION_BUS_ADDRESS": "unix:path=/x/bus,guid=1;tcp:host=localhost",
            "AWS_CONFIG_FILE": "",
            "NETRC": "/",
        }
    )
    named = {b"/x/agent", b"/x/one", b"/x/two", b"/x/docker.sock", b"/x/bus"}
    assert named | {os.path.join(bytes(tmp_path), b".ssh"), b"/etc/shadow"} <= set(found)
    assert all(os.path.isabs(path) and path != b"/" for path in found)
    assert os.path.join(bytes(tmp_path), b".bash_history") in found
    of_agents = {os.path.join(bytes(tmp_path), name) for name in (b".claude", b".codex")}
    assert not of_agents & set(found), "an agent that runs needs them"
    assert of_agents <= set(secret_places({}, agents=True))


@pytest.mark.parametrize("variable", ["SSH_AUTH_SOCK", "KUBECONFIG", "DOCKER_HOST"])
def test_a_variable_hides_nothing_that_a_box_needs(tmp_path: Path, variable: str) -> None:
    workspace, home, link = tmp_path / "above/project", tmp_path / "home/holdfast", tmp_path / "link"
    keys, inside, socket = tmp_path / "keys", workspace / "config", tmp_path / "home/agent.sock"
    for path in (workspace, home, keys):
        path.mkdir(parents=True)
    link.symlink_to("/usr")
    python = os.path.dirname(os.path.dirname(os.__file__))

    def found(path: object) -> bool:
        environment = {variable: f"unix://{path}" if variable == "DOCKER_HOST" else str(path)}
        path = os.fsencode(str(path))
        return bool({path, os.path.normpath(path)} & set(secret_places(environment, (bytes(workspace), bytes(home)))))

    needed = (
        *(
            "/",
            "/usr",
            "/usr/lib",
            "/usr/bin/env",
            "/lib",
            "/bin",
            "/etc",
            "/usr/",
            "//usr",
            "/x/../usr",
            link,
            python,
            os.__file__,
        ),
        *(sys.executable, sys.prefix, sys.base_prefix, os.path.dirname(sys.executable), Path(__file__).parents[3]),
        *(os.path.dirname(holdfast.__file__), tmp_path, workspace.parent, workspace, home.parent, home),
    )
    assert [path for path in needed if found(path)] == []
    assert all(map(found, (keys, inside, socket, "/etc/own/keys", "/run/user/0")))
