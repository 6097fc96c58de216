"""Running a command to its end, contained, in a box or as any program of the user's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.processes.child import run_contained_to_file

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping, Sequence

    from holdfast.processes.child import Ended, FileLimits
    from holdfast.supervisor.launch.sandbox_port import Sandbox


def run_contained(
    command: Sequence[bytes],
    *,
    box: Sandbox | None,
    directory: bytes,
    environment: Mapping[bytes, bytes],
    limits: FileLimits,
    output: bytes,
    stop: threading.Event | None = None,
    keep: Sequence[int] = (),
) -> Ended:
    """Run ``command`` in ``directory``, in the ``box`` (None: as an ordinary program of the user), until it ends.

    The beginning and the end of its output go to the new file ``output`` (mode 0600), at most `FileLimits.output`.
    ``keep`` are additional descriptors; its input is empty. Setting ``stop`` ends it. When this returns, and when this
    process is killed, all its processes have ended: without a box only if it does not kill its watcher. Call it on a
    thread that lives as long as the process. Raises `StorageError`, and `UnsupportedError` as `Sandbox.prepare`.
    """
    if box is None:
        return run_contained_to_file(
            command, limits, output, cwd=directory, environment=environment, pass_fds=keep, stop=stop
        )
    with box.prepare(command, directory=directory, environment=environment, keep=keep) as prepared:
        return run_contained_to_file(
            prepared.arguments,
            limits,
            output,
            cwd=b"/",
            environment=prepared.environment,
            pass_fds=(*prepared.descriptors, *keep),
            stop=stop,
        )
