"""The numbers of system calls, wherever one is written down, against the headers of the kernel."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.files.linux import process_credentials, syscalls
from holdfast.sandbox import _seccomp_filter
from holdfast.supervisor.confinement import seccomp_notify
from holdfast.supervisor.process_tree import kcmp
from holdfast.supervisor.syscalls.table import ARCHITECTURES, NOTIFIED, REFUSED
from holdfast.testing import yama_stub

HEADERS = {
    "x86_64": ("x86_64-linux-gnu/asm/unistd_64.h", "asm/unistd_64.h"),
    "aarch64": ("aarch64-linux-gnu/asm/unistd_64.h", "asm-generic/unistd.h"),
}
"""Below ``/usr/include``. What aarch64 has is the generic table."""


@pytest.fixture(name="header", params=sorted(HEADERS))
def _header(request: pytest.FixtureRequest) -> tuple[str, dict[str, int]]:
    """A machine, and what its header says."""
    for name in HEADERS[request.param]:
        path = Path("/usr/include", name)
        if path.exists():
            found = re.findall(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)$", path.read_text(), re.MULTILINE)
            return request.param, {call: int(number) for call, number in found}
    pytest.skip("the kernel's headers are not installed")


def test_every_number_is_the_kernels(header: tuple[str, dict[str, int]]) -> None:
    machine, there = header
    traced = dict(zip(("ptrace", "process_vm_readv", "pidfd_getfd"), yama_stub._NUMBERS[machine], strict=True))
    single = {
        "seccomp": seccomp_notify._SYS_SECCOMP[machine],
        "renameat2": syscalls._SYS_RENAMEAT2[machine],
        "kcmp": kcmp._SYSTEM_CALL[machine],
    }
    newest = max(there.values())
    for here in (
        ARCHITECTURES[machine].numbers, process_credentials._SYSCALLS[machine],
        _seccomp_filter._NUMBERS[machine], traced, single,
    ):  # fmt: skip
        known = {call: number for call, number in here.items() if number <= newest}
        assert known.items() <= there.items()


def test_no_call_that_the_machine_has_is_left_out(header: tuple[str, dict[str, int]]) -> None:
    machine, there = header
    assert there.keys() & (NOTIFIED | REFUSED.keys()) <= ARCHITECTURES[machine].numbers.keys()
