"""Decoders, first used by several threads at once."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from holdfast.model.decoders import converted, json_decoder, msgpack_decoder

SCRIPT = """
import sys, threading
import msgspec
from holdfast.model.decoders import converted, json_decoder, msgpack_decoder
sys.setswitchinterval(1e-6)
ASKS = (
    lambda kind: json_decoder(kind).decode(b'{"a": 1, "c": [{"a": 2, "c": [{"b": "y"}]}]}'),
    lambda kind: msgpack_decoder(kind).decode(msgspec.msgpack.encode({"a": 1, "c": [{"c": []}]})),
    lambda kind: converted({"a": 1, "c": [{"c": []}]}, kind),
)
for _ in range(30):
    kinds = [int]
    for _ in range(6):
        fields = [("a", "int", 0), ("b", "str", ""), ("c", list[kinds[-1]], [])]
        kinds.append(msgspec.defstruct("Kind", fields))
    at_once = threading.Barrier(3)

    def decode(ask):
        at_once.wait()
        for _ in range(20):
            assert ask(kinds[-1]).a == 1

    threads = [threading.Thread(target=decode, args=(ask,)) for ask in ASKS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


FORK = """
import os, signal, threading
from holdfast.model import decoders
held, may_go = threading.Event(), threading.Event()

def describe():
    with decoders._turn:
        held.set()
        may_go.wait(0.5)

threading.Thread(target=describe).start()
held.wait()
child = os.fork()
if not child:
    signal.alarm(20)
    os._exit(decoders.json_decoder(dict[str, int]).decode(b'{"code": 7}')["code"])
may_go.set()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert decoders.json_decoder(list[int]).decode(b"[1]") == [1]
"""


class Kind(msgspec.Struct):
    a: int


def test_threads_may_be_the_first_to_decode_a_type_at_once() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_fork_has_no_part_of_what_another_thread_describes() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FORK], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_what_does_not_fit_is_refused() -> None:
    assert json_decoder(Kind).decode(b'{"a": 1}') == Kind(1)
    assert json_decoder(Kind) is json_decoder(Kind)
    assert msgpack_decoder(list[Kind]).decode(msgspec.msgpack.encode([{"a": 2}])) == [Kind(2)]
    assert converted({"a": "3"}, Kind, strict=False) == Kind(3)
    for ask in (
        lambda: json_decoder(Kind).decode(b'{"a": "1"}'),
        lambda: msgpack_decoder(Kind).decode(b"\x01"),
        lambda: converted({"a": "3"}, Kind),
    ):
        with pytest.raises(msgspec.ValidationError):
            ask()
