"""Policies about files, as bubblewrap is told them."""

from __future__ import annotations

import pytest

from holdfast.model.errors import UsageError
from holdfast.sandbox.bubblewrap import HostFiles, SandboxMount, arguments, mounts
from holdfast.sandbox.policy import FileAccess, NoNetwork, PrivateHome, SandboxPolicy

W = b"/home/u/project"


def host(*directories: bytes, others: tuple[bytes, ...] = ()) -> HostFiles:
    return HostFiles({b"/tmp", b"/var/tmp", b"/run", *directories}, set(others))


def kinds(files: FileAccess, host: HostFiles, needed: tuple[bytes, ...] = ()) -> dict[bytes, str]:
    return {mount.path: mount.kind for mount in mounts(files, needed, host)}


def test_the_workspace_is_writable_and_sockets_are_out_of_sight() -> None:
    assert kinds(FileAccess(W), host()) == {W: "writable", b"/tmp": "scratch", b"/var/tmp": "scratch", b"/run": "empty"}


def test_a_shared_tmp_is_the_host_s() -> None:
    assert kinds(FileAccess(W, tmp="shared"), host())[b"/tmp"] == "shared"


def test_what_is_not_there_needs_no_hiding() -> None:
    files = FileAccess(W, hidden=(b"/home/u/.ssh", b"/home/u/.aws", b"/home/u/.netrc"))
    found = kinds(files, host(b"/home/u/.ssh", others=(b"/home/u/.netrc",)))
    assert found[b"/home/u/.ssh"] == "empty"
    assert found[b"/home/u/.netrc"] == "blank"
    assert b"/home/u/.aws" not in found


def test_what_is_secret_stays_so_whatever_else_is_asked_for() -> None:
    home = b"/home/u/.local/share/holdfast"
    found = mounts(FileAccess(W, (home,), writable=(b"/home/u/.local",)), (), host(home, b"/home/u/.local"))
    paths = [mount.path for mount in found]
    assert paths.index(home) > paths.index(b"/home/u/.local")
    assert SandboxMount(home, "empty") in found


def test_without_a_workspace_nothing_can_be_written_to_and_devices_are_let_in() -> None:
    files = FileAccess(None, hidden=(b"/home",), devices=(b"/dev/kvm",))
    found = mounts(files, (), host(b"/home", others=(b"/dev/kvm",)))
    assert {mount.path: mount.kind for mount in found} == {
        b"/dev/kvm": "device", b"/home": "empty", b"/run": "empty", b"/tmp": "scratch", b"/var/tmp": "scratch",
    }  # fmt: skip
    words = arguments(b"bwrap", found, b"/", SandboxPolicy(files), uid=7, gid=8, filter_fd=9)
    at = words.index(b"--dev-bind")
    assert words[at : at + 3] == [b"--dev-bind", b"/dev/kvm", b"/dev/kvm"]
    assert words.index(b"--dev") < at
    assert b"--bind" not in words


def test_what_is_lent_of_what_is_secret_can_be_read_and_nothing_beside_it() -> None:
    home, lent = b"/home/u/holdfast", b"/home/u/holdfast/kept"
    found = mounts(FileAccess(home + b"/fork", (home,), lent=(lent,)), (), host(home, lent))
    assert found[0] == SandboxMount(home, "empty")
    assert {mount.path: mount.kind for mount in found[1:3]} == {home + b"/fork": "writable", lent: "readable"}


U = b"/home/u"
HOME = PrivateHome(U, b"/x/home", (U, U + b"/.cargo"), (U + b"/project", U + b"/.ssh", U + b"/.cargo/bin"))
THERE = host(*HOME.own, *HOME.shown, U + b"/.cargo/registry", U + b"/.cache/python", others=(U + b"/.netrc",))


def test_a_home_of_its_own_shows_the_user_s_read_only_but_for_secrets() -> None:
    files = FileAccess(W, (U + b"/.cache/holdfast",), credentials=(U + b"/.ssh",), home=HOME)
    found = mounts(files, (U + b"/.cache/python", b"/usr/lib"), THERE)
    assert [(mount.path, mount.kind) for mount in found if mount.path.startswith(U)] == [
        (U, "own"),
        (U + b"/.cache/python", "readable"),
        (U + b"/.cargo", "own"),
        (U + b"/.cargo/bin", "shown"),
        (U + b"/.ssh", "empty"),
        (W, "writable"),
    ]
    assert {mount.origin for mount in found if mount.kind == "own"} == {b"/x/home", b"/x/home/.cargo"}
    shown = kinds(files._replace(visible=(U + b"/.cargo/registry", U + b"/.ssh")), THERE)
    assert (shown[U + b"/.cargo/registry"], shown[U + b"/.ssh"]) == ("readable", "shown")


def test_a_home_that_is_hidden_shows_nothing() -> None:
    for hidden in (U, b"/home"):
        found = kinds(FileAccess(W, hidden=(hidden,), home=HOME), host(b"/home", *HOME.own, *HOME.shown))
        assert {path: kind for path, kind in found.items() if path.startswith(U)} == {U: "own", W: "writable"}
    found = kinds(FileAccess(W, hidden=(U + b"/.cargo",), home=HOME), THERE)
    assert (found[U + b"/.cargo"], U + b"/.cargo/bin" in found) == ("empty", False)
    below = HOME._replace(path=b"/tmp/u", own=(b"/tmp/u",), shown=(b"/tmp/u/project",))
    found = kinds(FileAccess(W, home=below), host(*below.own, *below.shown))
    assert (found[b"/tmp/u"], b"/tmp/u/project" in found) == ("own", False), "so it is in other boxes"


@pytest.mark.parametrize("files", [FileAccess(U), FileAccess(b"/home"), FileAccess(b"/w", writable=(U,))])
def test_a_home_that_can_be_written_to_is_the_user_s(files: FileAccess) -> None:
    assert not {"own", "shown"} & set(kinds(files._replace(home=HOME), THERE).values())


def test_what_lies_deeper_comes_later() -> None:
    files = FileAccess(b"/tmp/a/b", (b"/tmp/a/b/.holdfast/undo",), hidden=(b"/tmp/a",))
    order = [mount.path for mount in mounts(files, (), host(b"/tmp/a", b"/tmp/a/b/.holdfast/undo"))]
    assert order == [b"/run", b"/tmp", b"/tmp/a", b"/tmp/a/b", b"/tmp/a/b/.holdfast/undo", b"/var/tmp"]


def test_what_the_box_needs_is_shown_only_where_it_would_be_hidden() -> None:
    found = kinds(FileAccess(W), host(b"/usr/lib/python", b"/tmp/venv"), (b"/usr/lib/python", b"/tmp/venv"))
    assert found[b"/tmp/venv"] == "readable"
    assert b"/usr/lib/python" not in found


@pytest.mark.parametrize(
    "files",
    [
        FileAccess(b"/"),
        FileAccess(b"relative"),
        FileAccess(W, hidden=(W,)),
        FileAccess(W, hidden=(W + b"/inside",)),
        FileAccess(W, hidden=(b"/proc/1",)),
        FileAccess(W, writable=(b"/home/u/missing",)),
        FileAccess(W, writable=(b"/dev",)),
        FileAccess(W, hidden=(b"/home/u/.ssh",), writable=(b"/home/u/.ssh/keys",)),
        FileAccess(W, secret=(b"/home/u/store",), writable=(b"/home/u/store",)),
    ],
)
def test_contradictions_are_refused(files: FileAccess) -> None:
    with pytest.raises(UsageError):
        mounts(files, (), host(b"/home/u/.ssh", b"/home/u/.ssh/keys", b"/home/u/store"))


def test_what_a_workspace_in_tmp_lies_in_cannot_be_renamed() -> None:
    assert kinds(FileAccess(b"/tmp/a/b/c"), host()) == {
        b"/run": "empty",
        b"/tmp": "scratch",
        b"/tmp/a": "empty",
        b"/tmp/a/b": "empty",
        b"/tmp/a/b/c": "writable",
        b"/var/tmp": "scratch",
    }
    assert b"/tmp/a" not in kinds(FileAccess(b"/tmp/a/b", tmp="shared"), host())


def test_arguments() -> None:
    made = [
        SandboxMount(b"/run", "empty"),
        SandboxMount(b"/run/x", "given", 9),
        SandboxMount(W, "writable"),
        SandboxMount(b"/n", "blank"),
    ]
    policy = SandboxPolicy(FileAccess(W), NoNetwork(), hostname="box")
    words = arguments(b"/bin/bwrap", made, W + b"/sub", policy, uid=7, gid=8, filter_fd=5)
    text = b" ".join(words)
    assert b"--unshare-user --uid 7 --gid 8 --disable-userns" in text
    for each in (b"--unshare-pid", b"--unshare-ipc", b"--unshare-net", b"--die-with-parent", b"--cap-drop ALL"):
        assert each in text
    assert b"--hostname box" in text
    assert b"--seccomp 5" in text
    assert b"--perms 0555 --tmpfs /run" in text
    assert b"--perms 0444 --ro-bind-data 9 /run/x" in text
    assert b"--bind " + W + b" " + W in text
    assert b"--ro-bind /dev/null /n" in text
    # Only when everything is in it may it be closed.
    assert text.endswith(b"--remount-ro /run --chdir " + W + b"/sub --")
    assert text.index(b"--ro-bind / /") < text.index(b"--proc /proc") < text.index(b"--ro-bind-try /proc/sys /proc/sys")
    shared = arguments(b"/bin/bwrap", made, W, SandboxPolicy(FileAccess(W)), uid=7, gid=8, filter_fd=5)
    assert b"--unshare-net" not in shared


def test_what_is_to_be_readable_is_seen_wherever_it_lies_and_never_writable() -> None:
    others = (b"/tmp/a/b", b"/tmp/a/b/inner", b"/var/tmp/o", b"/dev/shm/o", b"/run/u/o", b"/srv/o")
    files = FileAccess(b"/tmp/a/w", writable=(b"/srv", b"/srv/o/cache"), readable=others)
    found = kinds(files, host(b"/srv", b"/srv/o/cache", *others))
    assert {path: found[path] for path in others} == dict.fromkeys(others, "readable")
    assert b"/srv/o/cache" not in found
    assert (found[b"/srv"], found[b"/tmp/a"], found[b"/tmp/a/w"]) == ("writable", "empty", "writable")
    order = list(found)
    assert order.index(b"/tmp/a/b") < order.index(b"/tmp/a/b/inner")
    assert kinds(FileAccess(W, readable=(b"/tmp/o",), tmp="shared"), host(b"/tmp/o"))[b"/tmp/o"] == "readable"


def test_what_is_hidden_or_secret_is_not_readable_either() -> None:
    others = (b"/home/u/.ssh", b"/home/u/.ssh/keys", b"/home/u/store/x", b"/proc/1", b"/sys/fs")
    files = FileAccess(W, secret=(b"/home/u/store",), hidden=(b"/home/u/.ssh",), readable=others)
    found = kinds(files, host(*others, b"/home/u/store"))
    assert "readable" not in found.values()
    assert (found[b"/home/u/.ssh"], found[b"/home/u/store"]) == ("empty", "empty")


def test_what_the_host_shows_around_a_workspace_stays_in_sight() -> None:
    found = kinds(FileAccess(b"/tmp/share/a/b", writable=(b"/tmp/share",)), host(b"/tmp/share"))
    assert found[b"/tmp/share"] == "writable"
    assert b"/tmp/share/a" not in found
