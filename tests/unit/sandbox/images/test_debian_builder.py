"""What is asked of mmdebstrap, and what a recipe may be."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from holdfast.model.errors import UnsupportedError, UsageError
from holdfast.sandbox.images.debian_builder import DEFAULT_PACKAGES, Recipe, check_recipe, mmdebstrap_arguments
from holdfast.sandbox.images.host_tools import check_user_namespaces, find_tools, tool_failed

from .elf import program


def arguments(recipe: Recipe, *, as_root: bool = False) -> list[str]:
    return mmdebstrap_arguments(
        recipe, suite="s", sources="/w/a.sources", target="/w/root.tar", architecture="amd64", as_root=as_root
    )


def test_packages_are_asked_for_once() -> None:
    words = arguments(Recipe(packages=("nodejs", "git")))
    assert f"--include={','.join((*DEFAULT_PACKAGES, 'nodejs'))}" in words
    assert words[-3:] == ["s", "/w/root.tar", "/w/a.sources"]


def test_without_root_it_is_a_user_namespace() -> None:
    assert "--mode=unshare" in arguments(Recipe())
    assert "--mode=root" in arguments(Recipe(), as_root=True)


def test_commands_reach_the_shell_in_the_root_as_they_are(tmp_path: Path) -> None:
    command = "echo 'a b' \"$HOME\" `x` %s\\n; false"
    hooks = [word for word in arguments(Recipe(commands=(command,))) if word.startswith("--customize-hook=")]
    assert len(hooks) == 2
    chroot = tmp_path / "chroot"
    chroot.write_text('#!/bin/sh\nprintf "%s\\n" "$@" >"$OUT"\n')
    chroot.chmod(0o755)
    done = subprocess.run(
        ["sh", "-c", hooks[0].removeprefix("--customize-hook="), "exec", "/root/path"],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "OUT": str(tmp_path / "out")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == f"H: {command}\n"
    assert (tmp_path / "out").read_text() == f"/root/path\n/bin/sh\n-ec\n{command}\n"


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(packages=("a,b",)),
        Recipe(packages=("--option",)),
        Recipe(packages=("A",)),
        Recipe(suite="-x"),
        Recipe(suite="a b"),
        Recipe(mirror="/etc"),
        Recipe(mirror="http://a b"),
        Recipe(mirror="http://a\nTrusted: yes"),
        Recipe(commands=(" ",)),
        Recipe(commands=("a\0b",)),
        Recipe(kernel="linux image"),
    ],
)
def test_what_is_no_recipe(recipe: Recipe) -> None:
    with pytest.raises(UsageError):
        check_recipe(recipe)


def test_recipes() -> None:
    check_recipe(Recipe("stable", "https://mirror/debian", ("g++", "libc6:amd64", "git=1:2.39.5-0+deb12u2"), ("make",)))


def test_missing_programs_are_named_by_their_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.sandbox.images.host_tools._BEYOND_PATH", ())
    busybox = tmp_path / "busybox"
    busybox.write_bytes(program(3))  # (one that needs a loader)
    busybox.chmod(0o755)
    with pytest.raises(UnsupportedError) as raised:
        find_tools("mmdebstrap", "mksquashfs", "busybox", environ={"PATH": str(tmp_path)})
    assert raised.value.code == "tools_missing"
    assert str(raised.value.hint).endswith("apt install mmdebstrap squashfs-tools busybox-static")
    busybox.write_bytes(program(1))
    assert find_tools("busybox", environ={"PATH": str(tmp_path)}).paths == {"busybox": str(busybox)}


def test_a_program_that_failed_is_told_with_its_errors() -> None:
    assert tool_failed("apt-get", 100, "", b"W: x\nE: no package a\nE: b\nI: c\n").message == (
        "apt-get failed: exit 100; no package a; b"
    )
    assert tool_failed("mksquashfs", 1, "", b"first\nlast\n\n").message == "mksquashfs failed: exit 1; last"
    assert tool_failed("mksquashfs", -9, "time", b"").message == "mksquashfs failed: took too long"


def test_a_user_needs_ids_for_namespaces(tmp_path: Path) -> None:
    (tmp_path / "subuid").write_text("other:100000:65536\n4000000001:165536:65536\n")
    with pytest.raises(UnsupportedError, match="subgid") as raised:
        check_user_namespaces(4000000001, directory=str(tmp_path))
    assert raised.value.code == "no_user_namespaces"
    (tmp_path / "subgid").write_text("4000000001:165536:65536\n")
    check_user_namespaces(4000000001, directory=str(tmp_path))
    with pytest.raises(UnsupportedError, match="subuid"):
        check_user_namespaces(4000000002, directory=str(tmp_path))
