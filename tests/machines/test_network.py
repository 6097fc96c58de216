"""The network of a guest, tried from the inside, on a host of our own making."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.sandbox.images.manifest import Image

from ..e2e.isolated import ATTEMPTS, STAGE, need_namespaces
from .test_ends_with_its_starter import words

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give the host addresses"),
]

REACH = """
import struct
def ping(address):
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as own:
        own.settimeout(3)
        head = struct.pack("!BBHHH", 8, 0, 0, 7, 1)
        total = sum(struct.unpack("!4H", head))
        own.sendto(head[:2] + struct.pack("!H", ~(total + (total >> 16)) & 0xFFFF) + head[4:], (address, 0))
        while True:
            packet, sender = own.recvfrom(100)
            if sender[0] == address and packet[20] == 0:
                return "answered"
for name, try_it in (
    ("allowed", lambda: talk(("192.0.2.7", 8001))),
    ("other port", lambda: talk(("192.0.2.7", 8002))),
    ("other address", lambda: talk(("192.0.2.8", 8001))),
    ("six", lambda: talk(("2001:db8::7", 8001), socket.AF_INET6)),
    ("host", lambda: talk(("10.0.2.2", 8003))),
    ("name server", lambda: ask(("192.0.2.53", 53))),
    ("QEMU's name server", lambda: ask(("10.0.2.3", 53))),
    ("other name server", lambda: ask(("192.0.2.8", 53))),
    ("ping", lambda: ping("192.0.2.7")),
):
    attempt(name, try_it)
print(json.dumps(found))
"""
CODE = (ATTEMPTS + REACH).replace("settimeout(20)", "settimeout(3)")
ATTEMPT = f"sudo python3 -I -S -c {shlex.quote(CODE)}"
RECONFIGURE = (
    "sudo sh -c 'ip route flush table main; ip addr flush dev eth0; ip addr add 10.0.2.99/24 dev eth0;"
    " ip route add default via 10.0.2.2; ip addr add 192.0.2.99/32 dev lo; command -v nft && nft flush ruleset; true'"
)


def found_inside(image: Image, folder: Path, network: Sequence[object]) -> list[dict[str, str]]:
    """What attempts find in a guest, before and after its root has changed all that it can."""
    need_namespaces()
    starting = words(image, folder, network, [ATTEMPT, RECONFIGURE, ATTEMPT])
    staged = ["unshare", "--net", sys.executable, "-I", "-S", "-c", STAGE, *starting]
    done = subprocess.run(staged, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done
    first, _, last = (json.loads(line) for line in done.stdout.splitlines()[1:])
    assert (first[0], last[0]) == (0, 0), (first, last)
    return [json.loads(first[1]), json.loads(last[1])]


def test_an_open_network_is_the_host_s(built_image: Image, tmp_path: Path) -> None:
    for found in found_inside(built_image, tmp_path, ["open"]):
        # (There is no version 6 in a guest.)
        assert found.pop("six") == "ENETUNREACH"
        assert found.pop("host") == "5 at ('127.0.0.1', 8003)"
        del found["ping"], found["QEMU's name server"]
        assert {name: " at " in answer or answer == "answer to question" for name, answer in found.items()} == (
            dict.fromkeys(found, True)
        ), found


def test_a_disabled_network_reaches_nothing(built_image: Image, tmp_path: Path) -> None:
    need_namespaces()
    starting = words(built_image, tmp_path, ["disabled"], [ATTEMPT, "ls /sys/class/net"])
    staged = ["unshare", "--net", sys.executable, "-I", "-S", "-c", STAGE, *starting]
    done = subprocess.run(staged, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=True)
    (_, found), (_, interfaces) = (json.loads(line) for line in done.stdout.splitlines()[1:])
    assert set(json.loads(found).values()) == {"ENETUNREACH"}
    assert interfaces == "lo\n"


def test_what_is_allowed_is_reached_and_nothing_else(built_image: Image, tmp_path: Path) -> None:
    allow = ["allow", ["192.0.2.7:8001", "[2001:db8::7]:8001"], ["192.0.2.53"]]
    for found in found_inside(built_image, tmp_path, allow):
        assert found.pop("allowed") == "5 at ('192.0.2.7', 8001)"
        assert found.pop("name server") == "answer to question"
        assert found.pop("QEMU's name server") == "answer to question"
        assert found == {
            "other port": "ECONNREFUSED",
            "other address": "ECONNREFUSED",
            # (The host of QEMU's network is the box, where nothing listens.)
            "host": "ECONNREFUSED",
            "six": "ENETUNREACH",
            "other name server": "timed out",
            "ping": "timed out",
        }
