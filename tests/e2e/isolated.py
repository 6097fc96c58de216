"""What tests of isolation need: namespaces, and a copy of the program that users without any privilege may run."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.model.errors import HoldfastError
from holdfast.sandbox.isolation_probe import require_isolation
from holdfast.sandbox.policy import FileAccess, SandboxPolicy

NOBODY = 65534
USERS = [0, NOBODY] if os.geteuid() == 0 else [os.geteuid()]

ATTEMPTS = """
import ctypes, errno, json, os, signal, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
found = {}
def attempt(name, function):
    try:
        found[name] = function()
    except OSError as error:
        found[name] = errno.errorcode.get(error.errno, str(error))
def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result
def make(path):
    with open(path, "w") as file:
        file.write("x")
    return "made"
def talk(address, family=socket.AF_INET, text=b"hello"):
    with socket.socket(family, socket.SOCK_STREAM) as own:
        own.settimeout(20)
        own.connect(address)
        own.sendall(text)
        try:
            own.shutdown(socket.SHUT_WR)
        except OSError as error:
            # (Whoever was refused by the other end has heard it already: what it was, reading tells.)
            if error.errno != errno.ENOTCONN:
                raise
        answer = b""
        while piece := own.recv(65536):
            answer += piece
        return answer.decode()
def ask(address):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        own.settimeout(20)
        own.connect(address)
        own.send(b"question")
        return own.recv(100).decode()
"""
"""Helpers of what is tried inside; what it finds is in ``found``."""

STAGE = """
import ctypes, json, os, socket, subprocess, sys, threading
for words in (["link", "set", "lo", "up"], *(["addr", "add", *address, "dev", "lo"] for address in (
    ("192.0.2.7/32",), ("192.0.2.8/32",), ("192.0.2.53/32",), ("2001:db8::7/128", "nodad")))):
    subprocess.run(["ip", *words], check=True)
def serve(family, address):
    own = socket.socket(family, socket.SOCK_STREAM)
    own.bind(address)
    own.listen()
    def answer(connection):
        length = 0
        while piece := connection.recv(65536):
            length += len(piece)
        connection.sendall(f"{length} at {address}".encode())
        connection.close()
    def accept():
        while True:
            threading.Thread(target=answer, args=(own.accept()[0],), daemon=True).start()
    threading.Thread(target=accept, daemon=True).start()
def know(address):
    own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    own.bind(address)
    def answer():
        while True:
            question, asker = own.recvfrom(100)
            own.sendto(b"answer to " + question, asker)
    threading.Thread(target=answer, daemon=True).start()
for address in (("192.0.2.7", 8001), ("192.0.2.7", 8002), ("192.0.2.8", 8001), ("127.0.0.1", 8003), ("192.0.2.53", 53)):
    serve(socket.AF_INET, address)
serve(socket.AF_INET6, ("2001:db8::7", 8001))
serve(socket.AF_UNIX, "\\0holdfast-isolation")
know(("192.0.2.53", 53))
know(("127.0.0.53", 53))
know(("192.0.2.8", 53))
sys.exit(subprocess.run(sys.argv[1:]).returncode)
"""
"""A host with addresses at which servers listen, in a network of its own; runs the command that it is given."""


def need_namespaces() -> None:
    """Skip what cannot be tried on this machine."""
    try:
        require_isolation(SandboxPolicy(FileAccess(b"/nowhere")))
    except HoldfastError as error:
        pytest.skip(f"{error.message} ({error.hint})")


@contextmanager
def copied(*packages: str) -> Generator[Path]:
    """A directory that every user may enter, with copies of ``packages`` below ``src``."""
    folder = Path(tempfile.mkdtemp(prefix="isolated-"))
    try:
        folder.chmod(0o755)
        for name in packages:
            found = Path(importlib.import_module(name).__file__ or "").parent
            shutil.copytree(found, folder / "src" / name)
        yield folder
    finally:
        shutil.rmtree(folder)


def switch_to(user: int) -> dict[str, Any]:
    """What `subprocess` is to be told so that ``user`` runs something."""
    return {} if user == os.geteuid() else {"user": user, "group": user, "extra_groups": []}


def python_for(user: int, *, compiled: bool = False) -> str:
    """A Python that ``user`` may execute; ``compiled``: with packages that were compiled for this one."""
    wrong = f"sys.version_info[:2] != {tuple(sys.version_info[:2])}" if compiled else "sys.version_info < (3, 11)"
    # (Not by the name that it has in an environment, which may lie where a box has a directory of its own.)
    for python in (os.path.realpath(sys.executable), "/usr/bin/python3"):
        check = [python, "-I", "-S", "-c", f"import sys; sys.exit({wrong})"]
        try:
            if subprocess.run(check, check=False, **switch_to(user)).returncode == 0:
                return python
        except OSError:
            continue
    pytest.skip("no Python of a version that will do, which users other than root may execute")
