"""Starts a machine as a process of its own: to be killed, or in a network of its own.

    starter.py '{"image": [KERNEL, INITRD, ROOT], "log": …, "network": […], "commands": […], "source": …}'

Prints ``started PID`` and then the exit code and output of each command, as lines of JSON; ends when its input does.
"""

from __future__ import annotations

import json
import os
import sys

given = json.loads(sys.argv[1])
sys.path.insert(0, given["source"])

from holdfast.sandbox.channel import Channel  # noqa: E402
from holdfast.sandbox.images.manifest import Image  # noqa: E402
from holdfast.sandbox.policy import parse_network  # noqa: E402
from holdfast.sandbox.vm.machine import Machine  # noqa: E402
from holdfast.sandbox.vm.plan import Accelerator, BootPlan, GuestUser, MachinePlan  # noqa: E402

kernel, initrd, root = map(os.fsencode, given["image"])
plan = MachinePlan(
    Image("default", "test", kernel, initrd, root, manifest=None),  # type: ignore[arg-type]
    256 << 20,
    1,
    BootPlan(GuestUser("agent", 1000, 1000, b"/home/agent")),
    parse_network(*given["network"]),
    os.fsencode(given["log"]),
)
with Machine.start(plan, Accelerator("tcg")) as machine:
    print("started", machine.pid, flush=True)
    channel = Channel(machine.control.dup(), machine.control.dup(), start_seconds=400)
    for number, command in enumerate(given["commands"], 1):
        out: list[bytes] = []
        try:
            ended = channel.execute(number, command, cwd=b"/", on_output=lambda _, data: out.append(data))  # noqa: B023
        except Exception as error:
            sys.exit(f"{error}: {machine.failure()}")
        print(json.dumps([ended.exit_code, b"".join(out).decode()]), flush=True)
    sys.stdin.read()
    channel.close()
