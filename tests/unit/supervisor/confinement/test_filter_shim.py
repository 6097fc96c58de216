"""What puts itself under the filter, where the process that would serve it is gone."""

from __future__ import annotations

import subprocess
import sys

_ENTER = """
import socket
from holdfast.supervisor.confinement.filter_shim import enter
ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
ours.close()
enter(its.detach(), [], [b"echo", b"executed"], guarded=False)
"""


def test_it_ends_when_no_process_is_left_to_serve_it() -> None:
    """Its end is a call that the filter holds back: it would wait for an answer of its own."""
    done = subprocess.run([sys.executable, "-c", _ENTER], capture_output=True, timeout=60, check=False)
    assert (done.returncode != 0, done.stdout) == (True, b"")
