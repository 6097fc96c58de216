"""Looks after a shim that a session inside of a run has started: ``python -m holdfast.engine.hosting.shim_guard FD``.

The descriptor is closed as soon as the shim is there. Standard input and output are the control channel, which it
leaves to the shim. If that is lost, all that it has started ends, as where a session has a run of its own; after an end
in order what commands left running goes on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from holdfast.processes.process_tree import GRACE_SECONDS, become_subreaper, end_in_order
from holdfast.sandbox.channel import shim_command


def main(ready: int) -> int:
    """Run a shim until it ends; 0 if that was in order."""
    become_subreaper()
    # (It has our standard streams, and the orphans of what it runs are to come to us: a `processes.child` has neither.)
    shim = subprocess.Popen(shim_command())
    os.close(ready)
    signal.signal(signal.SIGTERM, lambda number, _frame: shim.send_signal(number))
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for fd in range(2):
        os.dup2(nothing, fd)
    while True:
        pid, status = os.wait()  # (of orphans, too)
        if pid == shim.pid:
            break
    if status:
        end_in_order(GRACE_SECONDS)
    return int(status != 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
