"""`holdfast ui` as a command: what it prints, how it ends, and what it says where it cannot begin."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
from urllib.parse import urlsplit

import pytest

from ..answers import check_command

pytest.importorskip("litestar", reason="needs litestar (extra server)")


def ask(address, path, **headers):
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, dict(answer.getheaders()), body.decode()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_prints_an_address_and_serves_until_a_signal(cli, number):
    cli.write("f", "1")
    cli("checkpoint", "-m", "first")
    server = cli.start("ui", "--json", stdout=subprocess.PIPE, text=True)
    try:
        found = json.loads(server.stdout.readline())
        check_command("ui", found)
        address = urlsplit(found["address"])
        assert address.hostname == "127.0.0.1"
        status, headers, _ = ask(found["address"], f"{address.path}?{address.query}")
        assert status == 200
        cookie = headers["set-cookie"].partition(";")[0]
        base = address.path.removesuffix("/enter")
        status, _, page = ask(found["address"], f"{base}/", cookie=cookie)
        assert status == 200
        assert '<span class="label">first</span>' in page
        assert ask(found["address"], f"{base}/")[0] == 401
        # (A page that is open has a connection that the server waits on.)
        stream = http.client.HTTPConnection(address.netloc, timeout=60)
        stream.request("GET", f"{base}/live?since=0", headers={"cookie": cookie})
        assert stream.getresponse().readline() == b"event: changed\r\n"
        server.send_signal(number)
        out, err = server.communicate(timeout=60)
        assert (server.returncode, out, err) == (0, "", "")
        stream.close()
    finally:
        server.kill()
        server.communicate()


def test_a_port_that_is_taken_is_said(cli):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ran = cli.process("ui", "--no-browser", "--port", str(taken.getsockname()[1]), code=1)
    assert b"cannot listen at 127.0.0.1:" in ran.stderr
    assert b"without --port" in ran.stderr


def test_what_is_no_port_is_said(cli):
    assert "is no port" in cli("ui", "--port", "70000", code=2).err


def test_where_there_is_no_workspace_it_says_so(bare):
    assert "not in a workspace" in bare("ui", "--no-browser", code=3).err


def test_without_the_libraries_it_says_what_to_install(cli, monkeypatch):
    import importlib.util

    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "litestar" else found(name))
    ran = cli("ui", "--no-browser", code=1)
    assert "the page needs libraries of the extra server that are not installed: litestar" in ran.err
    assert "-m pip install 'jinja2" in ran.err
