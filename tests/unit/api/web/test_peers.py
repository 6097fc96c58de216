"""Whose process a connection is, by what the kernel tells of real ones."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest

from holdfast.api.web.peers import Peers, standing_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

CONNECT = """
import os, socket, sys
{before}
family, host, port = socket.AF_INET, "127.0.0.1", int(sys.argv[1])
if sys.argv[2:] == ["mapped"]:
    family, host = socket.AF_INET6, "::ffff:127.0.0.1"
connection = socket.socket(family)
connection.connect((host, port))
connection.send(b"x")
{after}
sys.stdin.read()
"""
FILTERED = "from holdfast.testing.yama_stub import see_nothing; see_nothing()"


@contextmanager
def connected(before="", after="", *words):
    """Both ends of a connection that another process makes."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        script = CONNECT.format(before=before, after=after)
        command = [sys.executable, "-c", script, str(listener.getsockname()[1]), *words]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
            connection, client = listener.accept()
            with connection:
                assert connection.recv(1) == b"x"
                yield client[:2], listener.getsockname()
            process.communicate()


def test_an_ordinary_process_is_outside():
    with connected() as ends:
        assert standing_of(*ends) == "outside"
        assert Peers(may_hide=False).refusal(*ends) is None


def test_a_socket_of_the_newer_protocol_is_found_as_well():
    with connected("", "", "mapped") as ends:
        assert standing_of(*ends) == "outside"
    with connected(FILTERED, "", "mapped") as ends:
        assert standing_of(*ends) == "supervised"


@pytest.mark.parametrize("may_hide", [False, True])
def test_a_process_under_a_filter_for_good_is_refused(may_hide):
    with connected(FILTERED) as ends:
        assert standing_of(*ends) == "supervised"
        assert "in a run" in (Peers(may_hide=may_hide).refusal(*ends) or "")


def test_what_a_filtered_process_has_started_is_refused_whatever_it_shed():
    orphan = f"{FILTERED}\nif os.fork(): os._exit(0)\nos.setsid()"
    with connected(orphan) as ends:
        assert standing_of(*ends) == "supervised"


def test_a_connection_that_two_have_is_of_the_supervised_one_as_well():
    after = f"""
import atexit, signal
child = os.fork()
if not child:
    {FILTERED}
    os.close(0)
    signal.pause()
atexit.register(os.kill, child, signal.SIGKILL)
"""
    with connected("", after) as ends:
        for _ in range(200):
            if standing_of(*ends) == "supervised":
                break
        assert standing_of(*ends) == "supervised"


def test_a_client_that_hangs_up_after_asking_may_not():
    with connected("", "connection.shutdown(socket.SHUT_WR); connection.close()") as ends:
        for _ in range(200):
            if standing_of(*ends) == "hidden":
                break
        assert standing_of(*ends) == "hidden"
        assert "--no-browser" in (Peers(may_hide=False).refusal(*ends) or "")


def test_a_connection_on_its_way_to_another_process_has_no_holder():
    after = (
        "ours, theirs = socket.socketpair()\nsocket.send_fds(ours, [b'x'], [connection.fileno()])\nconnection.close()"
    )
    with connected("", after) as ends:
        for _ in range(200):
            if standing_of(*ends) == "hidden":
                break
        assert standing_of(*ends) == "hidden"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is another user at will")
def test_a_process_of_another_user_is_refused():
    def as_other_user(user):
        with connected(f"os.setgid({user}); os.setuid({user})") as ends:
            return standing_of(*ends)

    assert as_other_user(65534) == "other_user"


def test_what_asks_without_a_connection_is_refused_unless_it_may_hide(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() or 1000)
    assert Peers(may_hide=False).refusal(None, None)
    peers = Peers(may_hide=True)
    assert peers.refusal(None, None) is None
    with connected() as ends:
        assert peers.refusal(*ends, enters=True) is None
    assert peers.refusal(None, None), "the browser that came in can be seen, so it is another one"


def test_to_root_nothing_is_hidden(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert Peers(may_hide=True).refusal(None, None)
