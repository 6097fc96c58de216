"""The filter, run by an interpreter: what reaches the keeper, what is refused, and what passes by."""

from __future__ import annotations

import errno
import os

import pytest

from holdfast.supervisor.confinement.seccomp_program import ALLOW, ERRNO, KILL, NOTIFY, Hears, program
from holdfast.supervisor.syscalls.table import (
    ARCHITECTURES,
    KEPT_IN,
    LAST_KNOWN,
    LOSING,
    LOSING_IOCTLS,
    NOTIFIED,
    NOTIFIED_IOCTLS,
    NOTIFIED_PRCTLS,
    OPEN_FLAGS,
    REFUSED,
    REFUSED_IOCTLS,
    STOLEN_TERMINAL,
    TARGETS,
    WAITED_FOR,
)
from holdfast.testing.packet_filter import run

PASSING = ("ioctl", "prctl", "fanotify_init", WAITED_FOR[0])
"""By their other arguments."""
MACHINES = sorted(ARCHITECTURES)
PROGRAMS = {machine: program(machine) for machine in MACHINES}
HIGH = 0xABCD << 32
"""What may be in the half of a register that an int does not use."""


def answer(machine: str, number: int, *arguments: int) -> int:
    padded = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
    return run(PROGRAMS[machine], number, ARCHITECTURES[machine].audit, padded)[0]


@pytest.mark.parametrize("machine", MACHINES)
def test_every_number_is_answered_as_its_table_says(machine: str) -> None:
    names = {number: name for name, number in ARCHITECTURES[machine].numbers.items()}
    for number in range(LAST_KNOWN + 100):
        name = names.get(number)
        if number > LAST_KNOWN:
            expected = ERRNO | errno.ENOSYS
        elif name is None or name in (OPEN_FLAGS.keys() | TARGETS.keys() | LOSING) or name in PASSING:
            expected = ALLOW
        elif name in REFUSED:
            expected = ERRNO | REFUSED[name]
        else:
            assert name in NOTIFIED
            expected = NOTIFY
        assert answer(machine, number) == expected, name


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("hears", "others"), [("targets", NOTIFY), ("nothing", ERRNO | errno.EPERM)])
def test_where_a_mount_records_no_keeper_hears_of_changes(machine: str, hears: Hears, others: int) -> None:
    quiet = program(machine, hears)
    target = ARCHITECTURES[machine]

    def answered(number: int, *arguments: int) -> int:
        return run(quiet, number, target.audit, (*arguments, 0, 0, 0, 0, 0, 0)[:6])[0]

    for name, number in target.numbers.items():
        expected = ERRNO | KEPT_IN[name] if name in KEPT_IN else ALLOW
        assert answered(number) == expected, name
    assert answered(LAST_KNOWN + 1) == ERRNO | errno.ENOSYS
    assert answered(target.numbers["openat"], 0, 0, os.O_RDWR | os.O_CREAT) == ALLOW
    for name in ("mount", "umount2", "setns", "open_by_handle_at", "landlock_create_ruleset"):
        assert answered(target.numbers[name]) & ERRNO, name
    assert answered(target.numbers["io_uring_setup"]) == ALLOW
    assert answered(target.numbers["prlimit64"], 7, 0, 1) == others
    assert answered(target.numbers["epoll_ctl"], 3, 1, 4) == (NOTIFY if hears == "targets" else ALLOW)
    assert answered(target.numbers["epoll_ctl"], 3, 2, 4) == ALLOW
    assert answered(target.numbers["prlimit64"], 0, 0, 1) == ALLOW
    assert answered(target.numbers["ioctl"], 0, 0x5412) == ERRNO | errno.EPERM  # TIOCSTI
    for command in NOTIFIED_IOCTLS.values():
        assert answered(target.numbers["ioctl"], 3, command) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", sorted(OPEN_FLAGS))
def test_only_what_writes_or_creates_is_told_of_opening(machine: str, name: str) -> None:
    if name not in ARCHITECTURES[machine].numbers:
        return
    number = ARCHITECTURES[machine].numbers[name]

    def opened(flags: int) -> int:
        return answer(machine, number, *([0] * OPEN_FLAGS[name]), flags | HIGH)

    for reading in (os.O_RDONLY, os.O_CLOEXEC, os.O_NONBLOCK | os.O_DIRECTORY, os.O_PATH, os.O_PATH | os.O_CREAT):
        assert opened(reading) == ALLOW
    for change in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_RDWR, os.O_CREAT, os.O_TRUNC, os.O_TMPFILE | os.O_RDWR):
        assert opened(change) == NOTIFY
        assert opened(change | os.O_CLOEXEC) == NOTIFY


@pytest.mark.parametrize("machine", MACHINES)
def test_only_the_ioctls_that_change_files_are_told_of_or_refused(machine: str) -> None:
    number = ARCHITECTURES[machine].numbers["ioctl"]
    for command in NOTIFIED_IOCTLS.values():
        assert answer(machine, number, 3, command | HIGH) == NOTIFY
    for command, error in REFUSED_IOCTLS.items():
        assert answer(machine, number, 3, command | HIGH) == ERRNO | error
    for terminal in (0x5401, 0x5413, 0x80086601):
        assert answer(machine, number, 3, terminal) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_what_is_lost_by_open_descriptors_is_told_of_where_safeguards_are_asked_for(machine: str) -> None:
    numbers = ARCHITECTURES[machine].numbers
    guarded = program(machine, guarded=True)
    calls = {
        "ftruncate": [(3, 0), (3, 100)],
        "fallocate": [(3, mode | HIGH) for mode in (0x03, 0x08, 0x10, 0x11, 0x80)],
        "fcntl": [(3, 4 | HIGH, 0), (3, 4, os.O_NONBLOCK | HIGH)],
        "pwritev2": [(3, 0, 0, 0, 0, 0x20 | HIGH)],
        "ioctl": [(3, command | HIGH) for command in LOSING_IOCTLS],
    }
    passing = {
        "fallocate": [(3, 0), (3, 1), (3, 0x20), (3, 0x40)],
        "fcntl": [(3, 4, os.O_APPEND), (3, 0, 0), (3, 1030, 0), (3, 6, 0)],
        "pwritev2": [(3, 0, 0, 0, 0, 0x10)],
        "ioctl": [(3, 0x40305828)],
    }
    assert set(calls) == {*LOSING, "ioctl"}

    def answered(name: str, arguments: tuple[int, ...]) -> int:
        return run(guarded, numbers[name], ARCHITECTURES[machine].audit, (*arguments, 0, 0, 0, 0, 0, 0)[:6])[0]

    for name, all_arguments in calls.items():
        for arguments in all_arguments:
            assert answered(name, arguments) == NOTIFY, (name, arguments)
            assert answer(machine, numbers[name], *arguments) == ALLOW, (name, arguments)
    for name, all_arguments in passing.items():
        for arguments in all_arguments:
            assert answered(name, arguments) == ALLOW, (name, arguments)
    for name in ("openat", "prctl", "bpf", "setns"):  # the rest is as ever
        assert answered(name, (0, 0, os.O_RDWR)) == answer(machine, numbers[name], 0, 0, os.O_RDWR)


@pytest.mark.parametrize("machine", MACHINES)
def test_nobody_types_into_a_terminal_or_takes_it_from_a_session(machine: str) -> None:
    number = ARCHITECTURES[machine].numbers["ioctl"]
    for typing in (0x5412, 0x541C):  # TIOCSTI, TIOCLINUX
        assert answer(machine, number, 0, typing | HIGH) == ERRNO | errno.EPERM
    command, stealing = STOLEN_TERMINAL
    assert answer(machine, number, 0, command | HIGH, stealing | HIGH) == ERRNO | errno.EPERM
    assert answer(machine, number, 0, command, 0) == ALLOW
    assert answer(machine, number, 0, 0x5401, stealing) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_nobody_is_asked_before_others_open_files(machine: str) -> None:
    number = ARCHITECTURES[machine].numbers["fanotify_init"]
    for notified in (0, 1, 0x210, 0x1F30):  # (with descriptors and names of all kinds)
        assert answer(machine, number, notified | HIGH) == ALLOW
    for asked in (4, 8, 4 | 0x210, 8 | 1):  # FAN_CLASS_CONTENT, FAN_CLASS_PRE_CONTENT
        assert answer(machine, number, asked | HIGH) == ERRNO | errno.EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_what_is_set_of_others_is_told_of_and_of_groups_refused(machine: str) -> None:
    numbers = ARCHITECTURES[machine].numbers
    for name in ("sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler"):
        assert answer(machine, numbers[name], 0 | HIGH, 1, 1) == ALLOW
        assert answer(machine, numbers[name], 7, 0, 0) == NOTIFY
    limits = numbers["prlimit64"]
    assert answer(machine, limits, 0 | HIGH, 0, 1) == ALLOW
    assert answer(machine, limits, 7, 0, 0, 1) == ALLOW
    for pointer in (1, HIGH):
        assert answer(machine, limits, 7, 0, pointer) == NOTIFY
    for name, process in (("setpriority", 0), ("ioprio_set", 1)):
        assert answer(machine, numbers[name], process | HIGH, 0 | HIGH) == ALLOW
        assert answer(machine, numbers[name], process, 7) == NOTIFY
        for group in (process + 1, process + 2):
            for who in (0, 7):
                assert answer(machine, numbers[name], group | HIGH, who) == ERRNO | errno.EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_only_what_an_exec_may_take_away_is_told_of_prctl(machine: str) -> None:
    number = ARCHITECTURES[machine].numbers["prctl"]
    for option in NOTIFIED_PRCTLS.values():
        assert answer(machine, number, option | HIGH) == NOTIFY
    for option in (4, 15, 38):  # dumpable, name, no_new_privs
        assert answer(machine, number, option) == ALLOW


def test_calls_of_another_table_never_pass() -> None:
    assert run(PROGRAMS["x86_64"], 1, 0x40000003)[0] == KILL  # i386
    assert run(PROGRAMS["aarch64"], 1, 0x40000028)[0] == KILL  # arm
    assert answer("x86_64", 0x40000000 | 1) == ERRNO | errno.ENOSYS  # x32
    assert answer("x86_64", 0x40000000 | 257, 0, 0, os.O_RDWR) == ERRNO | errno.ENOSYS
    assert answer("x86_64", -1) == ERRNO | errno.ENOSYS


@pytest.mark.parametrize("machine", MACHINES)
def test_no_call_costs_more_than_a_few_instructions(machine: str) -> None:
    number = ARCHITECTURES[machine].numbers["ioctl"]
    for each in range(LAST_KNOWN + 1):
        if each != number:
            assert run(PROGRAMS[machine], each, ARCHITECTURES[machine].audit)[1] <= 18


def test_a_machine_without_a_table_is_no_machine() -> None:
    with pytest.raises(KeyError):
        program("riscv64")
