"""Processes that share files: each acts when it is told to, so that a history is what its seed says.

``python sharing.py DIRECTORY SEED...`` makes one history in each directory ``DIRECTORY/SEED``, which is there.
"""

from __future__ import annotations

import mmap
import os
import random
import sys
from contextlib import suppress

NAMES = ("f", "x", "d/f", "d/x", "n")


class Worker:
    """A process that waits for its turn."""

    def __init__(self, seed: str) -> None:
        turns, self._turn = os.pipe()
        self._answer, answers = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                _serve(turns, answers, random.Random(seed))
            finally:
                os._exit(0)
        os.close(turns)
        os.close(answers)

    def act(self) -> None:
        """Let it do one thing."""
        os.write(self._turn, b".")
        os.read(self._answer, 1)

    def end(self) -> None:
        """Let it end, with all that it has open."""
        os.write(self._turn, b"q")
        os.waitpid(self.pid, 0)
        os.close(self._turn)
        os.close(self._answer)


def _serve(turns: int, answers: int, chance: random.Random) -> None:
    held: list[int] = []
    maps: list[mmap.mmap] = []
    while os.read(turns, 1) == b".":
        with suppress(OSError, ValueError):
            _act(chance, held, maps)
        os.write(answers, b".")


def _act(chance: random.Random, held: list[int], maps: list[mmap.mmap]) -> None:
    kind, one, other = chance.randrange(15), chance.choice(NAMES), chance.choice(NAMES)
    if kind < 3:
        held.append(os.open(one, os.O_RDWR | os.O_CREAT | chance.choice((0, os.O_TRUNC, os.O_APPEND)), 0o644))
    elif kind < 5 and held:
        os.write(chance.choice(held), b"%d" % chance.randrange(1000))
    elif kind == 5 and held:
        os.close(held.pop(chance.randrange(len(held))))
    elif kind == 6 and held:
        os.ftruncate(chance.choice(held), chance.randrange(9))
    elif kind == 7:
        with open(f"{one}~", "w") as file:
            file.write("saved")
        os.replace(f"{one}~", one)
    elif kind in (8, 9):
        os.unlink(one)
    elif kind == 10:
        os.rename(one, other)
    elif kind == 11:
        os.link(one, other)
    elif kind == 12:
        os.rename(*chance.choice((("d", "m"), ("m", "d"))))
    elif kind == 13 and held:
        maps.append(mmap.mmap(chance.choice(held), 0))
        maps[-1][0] = 48 + chance.randrange(10)
    elif kind == 14:
        os.chmod(one, chance.choice((0o600, 0o644)))


def play(seed: str) -> None:
    """One history, in the working directory."""
    chance = random.Random(seed)
    workers: list[Worker] = []
    for at in range(chance.randrange(10, 50)):
        if len(workers) < 2 or (len(workers) < 5 and chance.random() < 0.1):
            workers.append(Worker(f"{seed}-{at}"))
        elif chance.random() < 0.1:
            workers.pop(chance.randrange(len(workers))).end()
        else:
            chance.choice(workers).act()
    for worker in workers:
        worker.end()


if __name__ == "__main__":
    for given in sys.argv[2:]:
        os.chdir(os.path.join(sys.argv[1], given))
        play(given)
