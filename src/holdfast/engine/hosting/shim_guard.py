"""The parent of a shim of a session inside a run: ``python -m holdfast.engine.hosting.shim_guard FD``.

The descriptor is closed when the shim has started. Standard input and output are the control channel, which is left to
the shim. If the shim is killed or fails, all processes that it started are ended, as for a session with its own run;
after a regular end, background processes go on.
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
    # It inherits our standard streams, and orphans of its commands must come to us; `processes.child` does neither.
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
