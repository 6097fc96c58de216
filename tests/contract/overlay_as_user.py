"""What a user who is not root does with overlays: ``python overlay_as_user.py DIRECTORY``, an empty one of theirs.

Says in one line of JSON what it has come upon.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from holdfast.model.errors import UnsupportedError
from holdfast.snapshot.overlay.provider import overlay_provider
from holdfast.snapshot.provider_context import ProviderContext
from holdfast.testing.provider_contract import lay
from holdfast.testing.tree_state import differences, photograph

CHANGES = """
echo changed >> plain; rm -r deep; mkdir deep; echo new > deep/new; mv run.sh -- -option deep/; rm link; mv empty other
"""


def main(top: Path) -> dict[str, object]:
    """Prepare, work, capture, show, branch, and clean up."""
    root = top / "tree"
    root.mkdir()
    lay(root)
    (root / "sub/in").mkdir(parents=True)
    (root / "sub/in/file").write_text("in\n")
    before = photograph(root)
    provider = overlay_provider(ProviderContext(bytes(root), bytes(top / "state"), "one"))
    found = provider.detect()
    if not found.score:
        return {"lacking": found.notes}
    try:
        provider.prepare("worktree")
    except UnsupportedError as error:
        refused = error.message
    else:
        refused = ""
    prepared = provider.prepare("overlay")

    def run(*command: str) -> str:
        return subprocess.run([*prepared.enter, *command], cwd=root, check=True, capture_output=True, text=True).stdout

    first = provider.mount(provider.snapshot(prepared, "first"))
    run("sh", "-ec", CHANGES)
    run("mv", "sub", "moved")
    second = provider.mount(provider.snapshot(prepared, "second"))
    seen = photograph(second.path)
    branch = provider.branch(provider.snapshots()[-1], "b", "overlay")
    third = provider.mount(provider.snapshot(branch, "third"))
    results = {
        "modes": found.modes,
        "refused": refused,
        "who": run("id", "-u").strip(),
        "sees": run("cat", "plain"),
        "changed": differences(before, photograph(root)),
        "first": [path for path, about in photograph(first.path).items() if before[path].content != about.content],
        "second": sorted(os.fsdecode(path) for path in seen if (seen[path] and b"deep" in path) or b"moved" in path),
        "third": differences(seen, photograph(third.path)),
        "unmounting": subprocess.run([*prepared.enter, "umount", root], capture_output=True, check=False).returncode,
    }
    for allocation in provider.tokens():
        provider.cleanup(allocation.token)
    return {**results, "left": [str(path) for path in (top / "state").rglob("*") if path.suffix != ".lock"]}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path(sys.argv[1])), default=os.fsdecode))
