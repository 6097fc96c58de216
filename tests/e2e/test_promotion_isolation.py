"""What the commands of a promotion see, change and reach, with what tries to get out; and hosts that cannot isolate."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.engine.promotion.manager import Promotions
from holdfast.model.answers.merges import Promoted
from holdfast.model.json_encoder import encode

from ..promoted import Ground, content, make_app, needs_isolation
from .conftest import INSTALLED, WITHOUT_NAMESPACES
from .rest import Place

SECRETS = (
    *(".ssh/id", ".aws/credentials", ".netrc", ".config/gh/hosts.yml", ".docker/config.json", ".cargo/credentials"),
    *(".claude/credentials", ".codex/auth.json", ".gradle/gradle.properties", ".databrickscfg", ".fly/config.yml"),
    *(".bash_history", ".python_history", ".psql_history"),
)


@pytest.fixture(name="ground")
def _ground(tmp_path: Path) -> Iterator[Ground]:
    found = Ground(tmp_path)
    make_app(found.root, sys.executable)
    (found.root / "holdfast.toml").unlink()
    yield found.begin()
    found.sound()
    assert found.leftovers() == []


@pytest.fixture(name="user")
def _user(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's directory, with credentials, a program, a project and a cache. (Below /tmp a box sees none.)"""
    with tempfile.TemporaryDirectory(dir=pwd.getpwuid(os.getuid()).pw_dir) as name:
        user = Path(name)
        for file in (*SECRETS, ".profile", ".cargo/bin/tool", ".cargo/registry/index", ".cache/seen", "project/file"):
            (user / file).parent.mkdir(parents=True, exist_ok=True)
            (user / file).write_text(f"of the user: {file}\n")
        (user / "link").symlink_to("project")
        monkeypatch.setenv("HOME", name)
        yield user


def promote(ground: Ground, script: str, more: dict[str, object] | None = None, **settings: object):
    """Promote a new change, with this script of Python as the build; ``settings`` are those of promotions."""
    fork = ground.base / "fork"
    fork = fork if fork.exists() else ground.fork()
    (fork / "change").write_text(f"{len(ground.steps)}\n")
    (fork / "build.py").write_text(script)
    ground.flags |= {f"promote.{name}": value for name, value in settings.items()} | (more or {})
    ground.flags["promote.build"] = [sys.executable, "build.py"]
    return ground.promote(fork)


def told(ground: Ground) -> Any:
    """What the build has noted."""
    return json.loads((ground.root / "deps/told").read_text())


READ = """\
import json, os
def attempt(do):
    try:
        return do()
    except OSError as error:
        return type(error).__name__
def read(path):
    return attempt(lambda: open(os.path.expanduser(path)).read())
def write(path):
    return attempt(lambda: open(os.path.expanduser(path), "w").write("x"))
def tell(found):
    json.dump(found, open("deps/told", "w"))
"""


@needs_isolation
def test_a_hostile_build_finds_no_credentials_and_changes_nothing_outside(ground: Ground, user: Path) -> None:
    before = content(user)
    targets = ["~/.profile", "~/project/file", "~/link/file", "~/.cargo/bin/tool", "~/.ssh/id", "/etc/hostname"]
    script = f"""{READ}
tell({{
    "read": [read(path) for path in {[f"~/{name}" for name in SECRETS]}],
    "home": read({str(ground.home / "catalog.db")!r}),
    "project": read("~/link/file"),
    "write": [write(path) for path in {targets}],
    "moved": [
        attempt(lambda: os.rename(os.path.expanduser(path), os.path.expanduser("~/away")))
        for path in ("~/.cargo", "~/.profile", "~/.ssh")
    ],
    "own": write("change"),
}})"""
    done = promote(ground, script)
    found = told(ground)
    assert {one for one in found["read"] if "of the user" in one} == set()
    assert found["home"] in ("FileNotFoundError", "PermissionError")
    assert found["project"] == "of the user: project/file\n", "what is no secret is there"
    assert 1 not in found["write"]
    assert None not in found["moved"]
    assert found["own"] == 1
    assert content(user) == before
    said = encode(Promoted, done)
    assert (said["isolation"], said["isolation_reason"]) == ("namespace", "")


@needs_isolation
def test_of_the_credentials_those_that_are_listed_are_shown(ground: Ground, user: Path) -> None:
    script = f"{READ}tell([read('~/.netrc'), write('~/.netrc'), read('~/.aws/credentials')])"
    promote(ground, script, {"isolation.visible": ["~/.aws"]}, show=["~/.netrc"])
    shown, written, other = told(ground)
    assert shown == "of the user: .netrc\n"
    assert written == "OSError"
    assert other == "FileNotFoundError", "what runs see is another list"
    assert (user / ".netrc").read_text() == shown


@needs_isolation
def test_caches_are_its_own_from_setup_to_check_and_gone_afterwards(ground: Ground, user: Path) -> None:
    before = content(user)
    names = [".cache/pip/x", ".npm/x", ".cargo/registry/x", ".cargo/git/x", ".cargo/.package-cache", ".new/x", "x"]
    fill = "for name; do mkdir -p ~/$(dirname $name) && echo made > ~/$name || exit 9; done"
    setup = ["sh", "-c", fill, "sh", *names]
    script = f"""{READ}
tell([[read("~/" + name) for name in {names}], read("~/.cache/seen"), read("~/.cargo/registry/index"),
      read("~/.cargo/bin/tool")])"""
    health = ["sh", "-c", "test -e ~/.cache/pip/x"]
    promote(ground, script, setup=setup, health=health)
    assert told(ground) == [["made\n"] * 7, "FileNotFoundError", "FileNotFoundError", "of the user: .cargo/bin/tool\n"]
    assert content(user) == before
    promote(ground, script, setup=[], health=[])
    assert told(ground)[0] == ["FileNotFoundError"] * 7, "another promotion has others"
    (user / ".npm").mkdir()
    promote(ground, script, {"isolation.writable": ["~/.npm"]}, setup=setup, show=["~/.cargo/registry/index"])
    assert told(ground)[2] == "of the user: .cargo/registry/index\n"
    assert content(user) == before | {".npm/x": b"made\n"}, "but for a cache that is let through"


@needs_isolation
def test_what_one_command_leaves_in_its_home_leads_the_next_one_nowhere(ground: Ground, user: Path) -> None:
    """The user's directory gets a name, between two commands, that the first one has linked to somewhere else."""
    shutil.rmtree(user / ".gradle")
    setup = ["sh", "-c", f"ln -s {user}/.ssh ~/.gradle; ln -s .ssh ~/go"]
    script = f"""{READ}
tell([read("~/.gradle/id"), write("~/.gradle/id"), write("~/.gradle/new"), read("~/go/id"), write("~/go/new")])"""

    def step(name: str) -> None:
        if name == "build":
            (user / ".gradle").mkdir()
            (user / "go/pkg").mkdir(parents=True)

    fork = ground.fork()
    (fork / "build.py").write_text(script)
    ground.flags |= {"promote.setup": setup, "promote.build": [sys.executable, "build.py"]}
    promotions = Promotions(home=ground.home, flags=ground.flags, tell=step)
    done = promotions.promote(fork)
    assert done.answer.result == "promoted", done.answer
    assert not [one for one in told(ground) if one == 1 or "of the user" in str(one)]
    assert content(user / ".ssh") == {"id": b"of the user: .ssh/id\n"}


@needs_isolation
@pytest.mark.parametrize("network", ["open", "disabled"])
def test_the_network_is_the_host_s_or_none(ground: Ground, network: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        connect = f"socket.create_connection(('127.0.0.1', {server.getsockname()[1]})).close()"
        script = f"{READ}import socket; tell(attempt(lambda: {connect}))"
        promote(ground, script, network=network)
        assert told(ground) == (None if network == "open" else "ConnectionRefusedError")


@needs_isolation
@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
def test_npm_installs_with_a_cache_of_its_own(ground: Ground, user: Path) -> None:
    package = ground.root / "package"
    package.mkdir()
    (package / "package.json").write_text('{"name": "inner", "version": "1.0.0"}')
    subprocess.run(["npm", "pack", "--silent", "./package"], cwd=ground.root, check=True, capture_output=True)
    (ground.root / "package.json").write_text('{"name": "app", "dependencies": {"inner": "file:inner-1.0.0.tgz"}}')
    before = content(user)
    promote(
        ground,
        f"{READ}tell(os.listdir(os.path.expanduser('~/.npm')))",
        setup=["npm", "install", "--no-audit", "--no-fund"],
        network="disabled",
    )
    assert (ground.root / "node_modules/inner/package.json").exists()
    assert "_cacache" in told(ground)
    assert content(user) == before


def refused(ground: Ground, *words: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """What ``holdfast promote`` says where the kernel allows no namespaces."""
    named = {f"HOLDFAST_{name.upper()}": value for name, value in settings.items()}
    done = subprocess.run(
        [*WITHOUT_NAMESPACES, *INSTALLED, "--home", str(ground.home), *words, "promote", str(ground.base / "fork")],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"HOLDFAST_PROMOTE_BUILD": "sh\n-c\necho built > deps/built; exit ${EXIT:-0}"} | named,
    )
    if "unshare" in done.stderr:
        pytest.skip(f"there are no user namespaces whose number could be limited: {done.stderr}")
    return done


def test_where_the_host_cannot_isolate_it_is_built_all_the_same_and_said(ground: Ground) -> None:
    fork = ground.fork()
    (fork / "change").write_text("one\n")
    done = refused(ground, "--json")
    said = json.loads(done.stdout)
    assert (said["result"], said["isolation"]) == ("promoted", "none")
    assert "isolation by namespaces cannot be had here" in said["isolation_reason"]
    assert "is not isolated" in done.stderr
    assert (ground.root / "deps/built").exists()
    (fork / "change").write_text("two\n")
    assert "Built WITHOUT isolation: isolation by namespaces cannot be had here" in refused(ground).stdout
    (fork / "change").write_text("three\n")
    failed = refused(ground, promote_build="false")
    assert failed.returncode == 1
    assert "Built WITHOUT isolation" in failed.stdout
    off = json.loads(refused(ground, "--json", promote_isolation="none").stdout)
    assert (off["isolation"], off["isolation_reason"]) == ("none", "promote.isolation is none")
    (fork / "change").write_text("four\n")
    nothing = json.loads(refused(ground, "--json", promote_build="").stdout)
    assert (nothing["result"], nothing["isolation"]) == ("promoted", ""), "there was nothing to isolate"


@pytest.mark.parametrize("settings", [{"promote_isolation": "namespace"}, {"promote_network": "disabled"}])
def test_what_was_asked_for_is_not_given_up(ground: Ground, settings: dict[str, str]) -> None:
    fork = ground.fork()
    (fork / "change").write_text("one\n")
    before = ground.content()
    done = refused(ground, "--json", **settings)
    assert (done.returncode, json.loads(done.stderr.splitlines()[-1])["error"]["code"]) == (1, "unsupported")
    assert ground.content() == before
    assert ground.promotions.list()[0].answer.code == "unsupported"


@needs_isolation
def test_a_promotion_that_was_isolated_is_not_gone_on_with_without(ground: Ground) -> None:
    fork = ground.fork()
    (fork / "change").write_text("one\n")
    gate = ground.base / "gate"
    gate.mkdir()
    os.mkfifo(gate / "fifo")
    ground.flags |= {
        "promote.setup": ["sh", "-c", f"echo at > {gate}/fifo; sleep 100"],
        "isolation.writable": [str(gate)],
    }
    environ = os.environ | {
        "HOLDFAST_PROMOTE_SETUP": f"sh\n-c\necho at > {gate}/fifo; sleep 100",
        "HOLDFAST_ISOLATION_WRITABLE": str(gate),
    }
    with subprocess.Popen([*INSTALLED, "--home", str(ground.home), "promote", str(fork)], env=environ) as process:
        assert (gate / "fifo").read_text() == "at\n"
        process.kill()
    done = subprocess.run(
        [*WITHOUT_NAMESPACES, *INSTALLED, "--home", str(ground.home), "--json", "promote", "--resume"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done
    assert not (ground.root / "change").exists()
    ground.promotions.sweep()


def test_a_server_that_cannot_isolate_says_so_and_keeps_exports_apart(tmp_path: Path) -> None:
    place = Place(tmp_path)
    check = subprocess.run([*WITHOUT_NAMESPACES, "true"], check=False, capture_output=True)
    if check.returncode:
        pytest.skip(f"there are no user namespaces whose number could be limited: {check.stderr!r}")
    with place.server("--no-upkeep", program=[*WITHOUT_NAMESPACES, *INSTALLED]) as server:
        assert server.said["promote_isolation"] == "none"
        assert "isolation by namespaces cannot be had here" in server.said["promote_isolation_reason"]
        assert [one for one in server.logged() if one["level"] == "warn" and "is not isolated" in one["message"]]
        admin = server.client(place.token())
        root = place.root / "app"
        make_app(root, sys.executable)
        (root / "holdfast.toml").write_text('[promote]\nbuild = ["sh", "-c", "cat change > deps/built"]\n')
        admin.post("/api/exports", {"name": "app", "path": str(root), "auto_checkpoint": False})
        made = admin.post("/api/exports/app/fork", {"name": "app-fork", "auto_checkpoint": False})
        fork = Path(made["export"]["path"])
        (fork / "change").write_text("one\n")
        body = {"fork": "app-fork"}
        done = admin.post("/api/exports/app/promote", body)
        assert (done["result"], done["isolation"]) == ("promoted", "none")
        assert "isolation by namespaces cannot be had here" in done["isolation_reason"]
        assert (root / "deps/built").read_text() == "one\n"
        # Of what the token may not see, nothing is risked.
        other = place.directory("other", secret="of another\n")
        admin.post("/api/exports", {"name": "other", "path": str(other), "auto_checkpoint": False})
        (fork / "change").write_text("two\n")
        scoped = server.client(place.token("--export", "app", "--export", "app-fork"))
        answer = scoped.ask("POST", "/api/exports/app/promote", body)
        assert (answer.status, answer.code) == (409, "not_isolated")
        assert "isolation by namespaces cannot be had here" in answer.json["detail"]
        assert server.stop() == 0
