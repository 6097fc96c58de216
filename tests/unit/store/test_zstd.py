"""The zstandard library is the same one whoever loads it first."""

from __future__ import annotations

import subprocess
import sys

import pytest

BESIDE = """
import sys, threading
sys.setswitchinterval(1e-6)
barrier, found, failed = threading.Barrier(8), set(), []
def load(number):
    barrier.wait()
    try:
        if number % 2:
            import zstandard
        else:
            from holdfast.store.zstd import zstandard
        found.add(zstandard.ZstdError)
    except BaseException as error:
        failed.append(error)
threads = [threading.Thread(target=load, args=(number,)) for number in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failed, failed
assert len(found) == 1
"""

FIRST = """
import sys
from holdfast.store.zstd import zstandard as ours
assert "typing" not in sys.modules
import zstandard
assert ours.ZstdError is zstandard.ZstdError
"""

SECOND = """
import zstandard
from holdfast.store.zstd import zstandard as ours
assert ours is zstandard
"""


def run(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("program", [FIRST, SECOND], ids=["first", "second"])
def test_there_is_one_library(program: str) -> None:
    run(program)


def test_it_is_loaded_while_other_threads_load_it() -> None:
    for _ in range(20):
        run(BESIDE)
