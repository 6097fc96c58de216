"""Which processes make up a step: real ones, each held where the test needs it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from holdfast.processes.process_tree import descendants
from holdfast.supervisor.process_tree.members import Processes, Run, is_asked_to_end, parent_of

from ....waiting import wait_until

WAIT = "read x <&3"


class World:
    """An agent with the shape that a script gives it; what is below it waits for its input to end."""

    def __init__(self) -> None:
        self.pidfds: list[int] = []
        self.processes = Processes(self.pidfds.append)
        self.groups: list[object] = []
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, script: str, ready: int) -> subprocess.Popen[bytes]:
        agent = subprocess.Popen(["sh", "-c", "exec 3<&0; " + script], stdin=-1, stdout=-1)
        self.started.append(agent)
        assert agent.stdout is not None
        for _ in range(ready):
            assert agent.stdout.readline() == b"up\n"
        return agent

    def end(self, process: subprocess.Popen[bytes]) -> None:
        process.communicate()

    def ended(self) -> list[object]:
        """The groups whose last process has ended, when all that were seen have."""
        while self.pidfds:
            select.select(self.pidfds, [], [], 20)
            self.some_ended()
        found, self.groups = self.groups, []
        return found

    def some_ended(self) -> None:
        poll = select.poll()
        for fd in self.pidfds:
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(0):
            self.pidfds.remove(fd)
            if (group := self.processes.ended(fd)) is not None:
                self.groups.append(group)


@pytest.fixture(name="world")
def _world() -> Generator[World]:
    world = World()
    yield world
    for process in world.started:
        world.end(process)
    world.ended()
    assert world.pidfds == []


def below(pid: int) -> list[int]:
    return descendants(pid)


def test_below_one_child_is_one_group(world: World) -> None:
    agent = world.start(f"sh -c 'sh -c \"echo up; {WAIT}; :\"; :'; :", 1)
    run = Run("r", agent.pid)
    child, grandchild = below(agent.pid)
    group = world.processes.group(run, grandchild)
    assert group.root == child
    assert world.processes.group(run, child) is group
    assert world.processes.group(run, agent.pid) is run.agents
    assert group.command[0] == b"sh"
    assert group.directory == os.getcwdb()
    assert not group.lives_on
    assert run.agents.lives_on
    assert world.processes.is_below(run, grandchild)
    assert not world.processes.is_below(run, agent.pid)
    assert not world.processes.is_below(run, os.getpid())
    world.end(agent)
    assert set(world.ended()) == {group, run.agents}
    assert group.exit_code == 0


def test_whoever_is_below_one_that_was_seen_is_of_its_run_alone(world: World) -> None:
    agent = world.start(f"sh -c 'sh -c \"echo up; {WAIT}; :\"; :'; :", 1)
    run, other = Run("r", agent.pid), Run("other", os.getpid())
    processes = world.processes
    tree = (agent.pid, *below(agent.pid))
    assert not any(processes.is_of(run, pid) for pid in tree)
    processes.group(run, agent.pid)
    assert all(processes.is_of(run, pid) for pid in tree)
    assert not any(processes.is_of(other, pid) for pid in tree)
    assert not any(processes.is_of(run, pid) for pid in (os.getpid(), os.getppid(), 1, 0))
    world.end(agent)
    assert not any(processes.is_of(run, pid) for pid in tree), "it was not taken notice of yet that it has ended"


def test_two_children_are_two_groups_unless_the_run_is_one_step(world: World) -> None:
    agent = world.start(f"(echo up; {WAIT}) & (echo up; {WAIT}) & wait", 2)
    first, second = below(agent.pid)
    run = Run("r", agent.pid)
    assert world.processes.group(run, first) is not world.processes.group(run, second)
    other = World()
    whole = Run("r", agent.pid, one_step=True)
    assert other.processes.group(whole, first) is other.processes.group(whole, second) is whole.agents
    assert not whole.agents.lives_on
    world.end(agent)
    other.ended()


def test_what_is_seen_before_its_parent_ends_stays_where_it_was(world: World) -> None:
    agent = world.start(f"sh -c '(echo up; {WAIT}) & echo up; read go <&3; exit 3'; {WAIT}", 2)
    run = Run("r", agent.pid)
    child, grandchild = below(agent.pid)
    world.processes.sort_children(run, child)
    group = world.processes.group(run, grandchild)
    assert group.root == child
    assert agent.stdin is not None
    os.kill(child, 9)
    while child in below(agent.pid):
        pass
    assert world.processes.group(run, grandchild) is group
    world.end(agent)
    assert group in world.ended()


def test_an_orphan_that_nobody_saw_is_known_by_its_session_or_is_ambient(world: World) -> None:
    agent = world.start(f"setsid sh -c '(echo up; {WAIT}) & (echo up; {WAIT}) & echo up; {WAIT}' & {WAIT}", 3)
    run = Run("r", agent.pid)
    child, *rest = [pid for pid in below(agent.pid) if os.getsid(pid) != os.getsid(0)]
    seen, unseen = rest
    group = world.processes.group(run, seen)
    os.kill(child, 9)
    while child in below(agent.pid):
        pass
    assert world.processes.group(run, unseen) is group
    stranger = world.start(f"echo up; {WAIT}", 1)
    assert world.processes.group(run, stranger.pid) is run.ambient


def test_how_the_root_of_a_group_ended_is_known(world: World) -> None:
    agent = world.start("sh -c 'echo up; read x; exit 7'; sh -c 'echo up; read x; kill -9 $$'; read x", 1)
    run = Run("r", agent.pid)
    assert agent.stdin is not None
    assert agent.stdout is not None
    codes: list[int | None] = []
    for _ in range(2):
        group = world.processes.group(run, below(agent.pid)[0])
        agent.stdin.write(b"go\n")
        agent.stdin.flush()
        assert world.ended() == [group]
        codes.append(group.exit_code)
        if len(codes) == 1:
            assert agent.stdout.readline() == b"up\n"
    assert codes == [7, 137]


def test_a_line_is_its_shell_and_what_that_starts_until_it_is_over(world: World, tmp_path: Path) -> None:
    lines = [tmp_path / "first", tmp_path / "second"]
    for line in lines:
        os.mkfifo(line)
    agent = world.start(
        f"sh -c 'echo up; {WAIT}; :' & read line <{lines[0]}; "
        f"sh -c 'sh -c \"echo up; {WAIT}; :\"; :' & read line <{lines[1]}; "
        f"sh -c 'echo up; {WAIT}; :'; :",
        1,
    )
    assert agent.stdout is not None
    run = Run("r", agent.pid)
    processes = world.processes
    assert processes.group(run, agent.pid) is run.agents
    (before,) = below(agent.pid)
    processes.begin_line(run, (b"a line",))
    first = run.line
    assert first is not None
    assert (first.command, first.directory, first.lives_on) == ((b"a line",), os.getcwdb(), False)
    lines[0].write_text("go\n")
    assert agent.stdout.readline() == b"up\n"
    during = [pid for pid in below(agent.pid) if pid != before]
    assert len(during) == 2
    assert processes.group(run, before).root == before, "though it was not seen before the line"
    assert {processes.group(run, pid) for pid in (agent.pid, *during)} == {first}
    processes.begin_line(run, (b"another",))
    lines[1].write_text("go\n")
    assert agent.stdout.readline() == b"up\n"
    (after,) = set(below(agent.pid)) - {before, *during}
    assert processes.group(run, after) is processes.group(run, agent.pid) is run.line is not first
    assert {processes.group(run, pid) for pid in during} == {first}
    run.line = None
    assert processes.group(run, agent.pid) is run.agents


@pytest.mark.parametrize(("handling", "asked"), [("SIG_DFL", True), ("default_int_handler", True), ("SIG_IGN", False)])
def test_a_signal_that_waits_asks_to_end_unless_it_is_ignored(world: World, handling: str, asked: bool) -> None:
    blocks = f"""
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGUSR1])
signal.signal(signal.SIGINT, signal.{handling})
print("up", flush=True)
sys.stdin.read()
"""
    process = world.start(f"exec {sys.executable} -c '{blocks}'", 1)
    process.send_signal(signal.SIGUSR1)
    assert not is_asked_to_end(process.pid)
    process.send_signal(signal.SIGINT)
    assert is_asked_to_end(process.pid) is asked


def test_threads_belong_to_their_process(world: World) -> None:
    agent = world.start(f"echo up; {WAIT}", 1)
    run = Run("r", agent.pid)
    tids = [int(name) for name in os.listdir(f"/proc/{agent.pid}/task")]
    assert [world.processes.group(run, tid) for tid in tids] == [run.agents]
    world.processes.forget_threads()
    assert world.processes.pidfds(run) == world.pidfds


def test_the_number_of_an_agent_that_has_ended_is_nobodys(world: World) -> None:
    agent = world.start("echo up; read x <&3", 1)
    run = Run("run", agent.pid)
    world.processes.group(run, agent.pid)
    assert list(world.processes.living_processes(run)) == [agent.pid]
    world.end(agent)
    world.ended()
    run.agent = os.getpid()  # who has the number by now is not of the run, nor what is below
    assert not list(world.processes.living_processes(run))


def test_one_that_has_ended_is_none_of_the_run_even_before_that_was_noticed(world: World) -> None:
    agent = world.start(f"sh -c 'echo up; {WAIT}'; :", 1)
    run = Run("r", agent.pid, one_step=False)
    (child,) = descendants(agent.pid)
    for pid in (agent.pid, child):
        world.processes.group(run, pid)
    assert set(world.processes.living_processes(run)) == {agent.pid, child}
    world.end(agent)
    wait_until(lambda: not list(world.processes.living_processes(run)), "the end of all")
    assert world.processes.is_known(child), "nothing has told of its end yet"


def test_there_is_room_for_so_many_and_each_run_leaves_some_to_others(world: World) -> None:
    world.processes = Processes(world.pidfds.append, 8)
    agent = world.start(f"for i in 1 2 3 4 5 6 7 8 9; do sh -c 'echo up; {WAIT}; :' & done; wait", 9)
    run = Run("r", agent.pid)
    children = below(agent.pid)
    assert len(list(world.processes.living_groups(run))) == 0
    assert world.processes.group(run, agent.pid) is run.agents
    assert len(list(world.processes.living_groups(run))) == 4, "who only looks leaves half of it"
    for child in children[3:5]:
        world.processes.group(run, child)
    with pytest.raises(OSError, match="Too many open files in system"):
        world.processes.group(run, children[-1])
    assert world.processes.group(run, children[0]).root == children[0]
    other = world.start(f"echo up; {WAIT}; :", 1)
    second = Run("s", other.pid)
    assert world.processes.group(second, other.pid) is second.agents
    world.end(agent)
    while run.processes:
        select.select(world.pidfds, [], [], 20)
        world.some_ended()
    for child in range(2):
        assert world.processes.group(second, world.start(f"echo up {child}; {WAIT}", 0).pid) is second.ambient


CHAIN = """
import os
for _ in range(400):
    if os.fork():
        os._exit(os.wait()[1])
print("up", flush=True)
os.read(0, 1)
"""


def test_the_last_of_a_long_chain_is_found_whoever_was_seen_before(world: World) -> None:
    agent = world.start(f"{sys.executable} -c '{CHAIN}'; :", 1)
    run = Run("r", agent.pid)
    (top,) = [pid for pid in below(agent.pid) if parent_of(pid) == agent.pid]
    last = [pid for pid in below(agent.pid) if not below(pid)]
    assert world.processes.group(run, last[0]).root == top
