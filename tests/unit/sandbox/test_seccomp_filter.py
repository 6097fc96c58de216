"""What the box's own filter answers, without a kernel."""

from __future__ import annotations

import errno

import pytest

from holdfast.sandbox._seccomp_filter import program
from holdfast.supervisor.confinement.seccomp_program import ALLOW, ERRNO, KILL
from holdfast.supervisor.syscalls.table import ARCHITECTURES
from holdfast.testing.packet_filter import run

X86 = ARCHITECTURES["x86_64"].audit
ARM = ARCHITECTURES["aarch64"].audit


@pytest.mark.parametrize(
    ("machine", "number", "arguments", "answer"),
    [
        ("x86_64", 16, (0, 0x5412), ERRNO | errno.EPERM),
        ("x86_64", 16, (0, 0xFFFFFFFF00005412), ERRNO | errno.EPERM),
        ("x86_64", 16, (0, 0x541C), ERRNO | errno.EPERM),
        ("x86_64", 16, (0x5412, 0x5413), ALLOW),
        ("x86_64", 41, (40, 1), ERRNO | errno.EAFNOSUPPORT),
        ("x86_64", 41, (2, 40), ALLOW),
        ("x86_64", 250, (0,), ERRNO | errno.ENOSYS),
        ("x86_64", 0x40000000 | 16, (0, 0x5412), ERRNO | errno.ENOSYS),
        ("x86_64", 0, (), ALLOW),
        ("x86_64", 257, (), ALLOW),
        ("aarch64", 29, (0, 0x5412), ERRNO | errno.EPERM),
        ("aarch64", 198, (40,), ERRNO | errno.EAFNOSUPPORT),
        ("aarch64", 219, (), ERRNO | errno.ENOSYS),
        ("aarch64", 16, (0, 0x5412), ALLOW),
    ],
)
def test_answers(machine: str, number: int, arguments: tuple[int, ...], answer: int) -> None:
    padded = (*arguments, *[0] * (6 - len(arguments)))
    assert run(program(machine), number, ARCHITECTURES[machine].audit, padded)[0] == answer


def test_other_architectures_end() -> None:
    assert run(program("x86_64"), 16, ARM)[0] == KILL
    assert run(program("aarch64"), 16, X86)[0] == KILL
    with pytest.raises(KeyError):
        program("riscv64")
