"""Runs a seccomp filter without a kernel: the instructions of the classic Berkeley packet filter that one may have."""

from __future__ import annotations

import struct

_INSTRUCTION = struct.Struct("=HBBI")
_DATA = struct.Struct("=iIQ6Q")


def run(program: bytes, number: int, audit: int, arguments: tuple[int, ...] = (0,) * 6) -> tuple[int, int]:
    """The filter's result for a call, and the number of instructions.

    Makes the checks of the kernel: jumps stay inside and lead forward, every path ends with a return, loads are aligned
    and inside ``struct seccomp_data``.
    """
    data = _DATA.pack(number, audit, 0, *arguments)
    code = list(_INSTRUCTION.iter_unpack(program))
    assert len(code) <= 4096
    accumulator = 0
    at = steps = 0
    while True:
        operation, if_true, if_false, constant = code[at]
        steps += 1
        at += 1
        match operation:
            case 0x20:  # BPF_LD | BPF_W | BPF_ABS
                assert constant % 4 == 0
                assert constant + 4 <= len(data)
                (accumulator,) = struct.unpack_from("=I", data, constant)
            case 0x15:  # BPF_JMP | BPF_JEQ | BPF_K
                at += if_true if accumulator == constant else if_false
            case 0x35:  # BPF_JMP | BPF_JGE | BPF_K
                at += if_true if accumulator >= constant else if_false
            case 0x45:  # BPF_JMP | BPF_JSET | BPF_K
                at += if_true if accumulator & constant else if_false
            case 0x06:  # BPF_RET | BPF_K
                return constant, steps
            case _:
                raise AssertionError(f"unknown instruction {operation:#x}")
