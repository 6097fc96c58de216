"""The zstandard library is the one of its package, whoever loads which first."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

LOADED = "from holdfast.store.codecs.zstandard import zstandard; "
SAME = "assert zstandard.ZstdCompressor is package.ZstdCompressor; assert zstandard.ZstdError is package.ZstdError"

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
            from holdfast.store.codecs.zstandard import zstandard
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


def run(code: str, **environment: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, **environment})


def test_the_library_comes_without_its_package() -> None:
    run(f"{LOADED}import sys; assert not {{'zstandard', 'platform'}} & {{*sys.modules}}; zstandard.ZstdCompressor()")


@pytest.mark.parametrize("code", [f"{LOADED}import zstandard as package; ", f"import zstandard as package; {LOADED}"])
def test_the_package_has_the_same(code: str) -> None:
    run(code + SAME)


def test_where_the_environment_asks_for_one_the_package_decides() -> None:
    pytest.importorskip("zstandard.backend_cffi", reason="zstandard was built without cffi")
    run(
        f"{LOADED}import sys; assert zstandard is sys.modules['zstandard']; assert zstandard.backend == 'cffi'",
        PYTHON_ZSTANDARD_IMPORT_POLICY="cffi",
    )


@pytest.mark.parametrize("found", ["None", "spec_from_loader(name, Broken())"])
def test_where_there_is_no_such_extension_the_package_decides(found: str) -> None:
    run(
        "import sys\n"
        "from importlib.machinery import PathFinder\n"
        "from importlib.util import spec_from_loader\n"
        "class Broken:\n"
        "    def create_module(self, spec): pass\n"
        "    def exec_module(self, module): raise ImportError(module.__name__)\n"
        "real = PathFinder.find_spec\n"
        "asked = []\n"
        "def find_spec(name, path=None, target=None):\n"
        "    asked.extend([name] if name.startswith('zstandard') else [])\n"
        f"    return {found} if asked == ['zstandard', 'zstandard.backend_c'] else real(name, path, target)\n"
        "PathFinder.find_spec = find_spec\n"
        "from holdfast.store.codecs.zstandard import zstandard\n"
        "assert asked[:2] == ['zstandard', 'zstandard.backend_c']\n"
        "assert zstandard is sys.modules['zstandard']\n"
        "zstandard.ZstdCompressor()\n"
    )


def test_it_is_loaded_while_other_threads_load_it() -> None:
    for _ in range(20):
        run(BESIDE)
