"""What the FUSE bridge costs: the same work natively, on Holdfast's bridge, and on other FUSE file systems, in turns.

    python benchmarks/bridge.py [--files 14000] [--rounds 3] [--directory DIR] [--json FILE]

As `run.py`, and with the same rows: mounting is in none of them, the capture of preimages is. The others are bindfs,
fuse-overlayfs and libfuse's passthrough_hp, where they are found on the path, and overlayfs, for root.
"""

from __future__ import annotations

from run import perform
from run_subjects import BRIDGE

ROWS = (
    *("walk", "open, read, close", "git status", "grep", "sequential read", "sequential write"),
    *("create", "untar", "rename", "overwrite", "unlink", "rm -rf"),
)

if __name__ == "__main__":
    perform("bridge", __doc__, BRIDGE, ROWS)
