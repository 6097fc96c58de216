"""What is found out about isolation, where it works and where it does not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.model.errors import HoldfastError, UnsupportedError
from holdfast.sandbox import isolation_probe
from holdfast.sandbox.isolation_probe import harmless_command, probe, require_isolation
from holdfast.sandbox.namespace import find_program
from holdfast.sandbox.policy import FileAccess, SandboxPolicy

SOURCE = Path(__file__).parents[3] / "src"
ASK = "import json; from holdfast.sandbox.isolation_probe import probe; print(json.dumps(probe()))"


def test_a_program_that_is_missing_is_named_with_its_package() -> None:
    assert os.access(find_program("sh", "dash"), os.X_OK)
    with pytest.raises(UnsupportedError, match="bwrap-that-is-not-there") as found:
        find_program("bwrap-that-is-not-there", "bubblewrap")
    assert found.value.hint == "install bubblewrap"


def test_what_works_here_is_found_to_work() -> None:
    try:
        require_isolation(SandboxPolicy(FileAccess(b"/nowhere")))
    except HoldfastError as error:
        pytest.skip(f"{error.message} ({error.hint})")
    assert all(finding.works for finding in probe()[:2])


def test_a_path_without_any_program_does_not_switch_isolation_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        require_isolation(SandboxPolicy(FileAccess(b"/nowhere")))
    except HoldfastError as error:
        pytest.skip(f"{error.message} ({error.hint})")
    monkeypatch.setenv("PATH", str(tmp_path))
    require_isolation(SandboxPolicy(FileAccess(b"/nowhere")))
    monkeypatch.setattr(isolation_probe, "SYSTEM_PATH", str(tmp_path))
    assert harmless_command()[0] == os.fsencode(sys.executable)
    require_isolation(SandboxPolicy(FileAccess(b"/nowhere")))


def test_where_users_may_have_no_namespaces_it_is_said_what_would_help() -> None:
    script = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    words = ["unshare", "--user", "--map-root-user", "sh", "-c", script, "sh", sys.executable, "-c", ASK]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": str(SOURCE)}
    )
    if done.returncode:
        pytest.skip(f"there are no user namespaces whose number could be limited: {done.stderr}")
    for name, works, reason, help_ in json.loads(done.stdout)[:3]:
        assert not works, name
        assert reason
        assert help_ == "sysctl user.max_user_namespaces=10000" or help_.startswith("install "), help_
