"""Disk images, with the real qemu-img and real data: what is on a disk is what was written there, whatever becomes of
the images around it.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.model.errors import FormatError, NotFoundError, RefusedError, StorageError, UnsupportedError, UsageError
from holdfast.snapshot.qcow2 import _qemu_img as qemu_img
from holdfast.snapshot.qcow2._header import read_header
from holdfast.snapshot.qcow2.images import Images
from holdfast.testing.crash_points import run_killed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.snapshot.port import Token
    from holdfast.snapshot.qcow2.images import Image

pytestmark = pytest.mark.skipif(
    shutil.which("qemu-img") is None or shutil.which("qemu-io") is None, reason="needs qemu-img and qemu-io"
)
MIB = 1 << 20


@pytest.fixture
def images(tmp_path: Path) -> Iterator[Images]:
    """An empty directory; in the end what is in it is sound, and nothing but images."""
    found = Images(os.fsencode(tmp_path / "images"))
    yield found
    for token in found.images():
        if (tmp_path / "spoiled").exists():
            continue
        assert found.check(token).corruptions == 0
    names = os.listdir(tmp_path / "images") if (tmp_path / "images").exists() else []
    assert sorted(names) == sorted([*(f"{token}.qcow2" for token in found.images()), *(["lock"] if names else [])])


def write(image: Image, pattern: int, at: int = 0, count: int = MIB) -> None:
    """Write a pattern to a disk, as a machine would."""
    io(image, f"write -P {pattern} {at} {count}")


def io(image: Image, *commands: str) -> None:
    words = [word for command in commands for word in ("-c", command)]
    done = subprocess.run(["qemu-io", "-f", "qcow2", *words, image.path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def holds(image: Image, pattern: int, at: int = 0, count: int = MIB) -> bool:
    """Whether a part of a disk holds a pattern."""
    words = ["qemu-io", "-f", "qcow2", "-r", "-c", f"read -P {pattern} {at} {count}", image.path]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.returncode == 0 and "Pattern verification failed" not in done.stdout


def test_a_disk_is_made_and_gone(images: Images) -> None:
    assert images.images() == ()
    image = images.create(8 * MIB)
    assert (image.size, image.base, image.stands_on_it, image.states) == (8 * MIB, None, (), ())
    assert images.images() == [image.token]
    assert os.stat(image.path).st_mode & 0o777 == 0o600
    write(image, 1)
    assert images.image(image.token).allocated > image.allocated
    images.remove(image.token)
    images.remove(image.token)
    assert images.images() == []
    with pytest.raises(NotFoundError):
        images.image(image.token)


def test_an_overlay_begins_as_its_base_and_leaves_it_alone(images: Images) -> None:
    base = images.create(8 * MIB)
    write(base, 1)
    one, two = images.overlay(base.token), images.overlay(base.token)
    write(one, 2, MIB)
    assert holds(one, 1)
    assert holds(one, 2, MIB)
    assert holds(two, 0, MIB)
    assert holds(base, 0, MIB)
    deeper = images.overlay(one.token)
    write(deeper, 3)
    assert holds(one, 1)
    assert holds(deeper, 2, MIB)
    assert images.image(base.token).stands_on_it == tuple(sorted((one.token, two.token)))
    assert images.image(deeper.token).base == one.token
    for token in (base.token, one.token):
        with pytest.raises(RefusedError) as refused:
            images.remove(token)
        assert refused.value.code == "in_use"
    for token in (deeper.token, one.token, two.token, base.token):
        images.remove(token)


def test_states_within_an_image(images: Images) -> None:
    image = images.create(8 * MIB)
    write(image, 1)
    images.save(image.token, "first")
    write(image, 2)
    images.save(image.token, "second")
    write(image, 3)
    assert [state.name for state in images.image(image.token).states] == ["first", "second"]
    images.revert(image.token, "first")
    assert holds(image, 1)
    images.revert(image.token, "second")
    assert holds(image, 2)
    images.drop(image.token, "first")
    with pytest.raises(NotFoundError):
        images.revert(image.token, "first")
    with pytest.raises(RefusedError) as refused:
        images.save(image.token, "second")
    assert refused.value.code == "exists"
    for name in ("", "1", "-c", "a b", "a\n", "a/b", "x" * 65, "é"):
        with pytest.raises(UsageError):
            images.save(image.token, name)
        with pytest.raises(NotFoundError):
            images.drop(image.token, name)
    assert holds(image, 2)


def test_an_image_that_others_stand_on_is_not_written_to(images: Images) -> None:
    base = images.create(8 * MIB)
    images.save(base.token, "a")
    images.overlay(base.token)
    for change in (images.save, images.revert, images.drop):
        with pytest.raises(RefusedError) as refused:
            change(base.token, "a")
        assert refused.value.code == "in_use"


def test_merging_into_the_base(images: Images) -> None:
    base = images.create(8 * MIB)
    write(base, 1, count=2 * MIB)
    top = images.overlay(base.token)
    write(top, 2)
    other = images.overlay(base.token)
    with pytest.raises(RefusedError):
        images.merge(top.token)
    images.remove(other.token)
    images.save(top.token, "state")
    with pytest.raises(RefusedError):
        images.merge(top.token)
    images.drop(top.token, "state")
    assert images.merge(top.token) == base.token
    assert images.images() == [base.token]
    assert holds(base, 2)
    assert holds(base, 1, MIB)
    with pytest.raises(RefusedError):
        images.merge(base.token)


def test_a_merge_that_was_cut_short_is_done_again(images: Images, tmp_path: Path) -> None:
    base = images.create(8 * MIB)
    write(base, 1)
    top = images.overlay(base.token)
    write(top, 2, count=8 * MIB)
    cut = Images(os.fsencode(tmp_path / "images"), max_bytes=8 * MIB)
    with pytest.raises(StorageError):
        cut.merge(top.token)
    assert holds(top, 2, count=8 * MIB)
    assert not holds(base, 1), "it has begun"
    images.merge(top.token)
    assert holds(base, 2, count=8 * MIB)
    assert images.images() == [base.token]


def test_another_base_leaves_the_disk_as_it_is(images: Images) -> None:
    base, other = images.create(8 * MIB), images.create(8 * MIB)
    write(base, 1)
    write(other, 7, count=4 * MIB)
    top = images.overlay(base.token)
    write(top, 2, MIB)
    upon = images.overlay(top.token)
    images.rebase(top.token, other.token)
    assert images.image(top.token).base == other.token
    for image in (top, upon):
        assert holds(image, 1)
        assert holds(image, 2, MIB)
        assert holds(image, 0, 2 * MIB, 6 * MIB)
    images.rebase(top.token, None)
    assert images.image(top.token).base is None
    images.remove(base.token)
    images.remove(other.token)
    assert holds(upon, 1)
    for base_again in (upon.token, top.token):
        with pytest.raises(RefusedError):
            images.rebase(top.token, base_again)


def test_an_image_in_use_is_left_alone(images: Images) -> None:
    base = images.create(8 * MIB)
    image = images.overlay(base.token)
    words = ["qemu-io", "-f", "qcow2", image.path]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as machine:
        assert machine.stdin is not None
        assert machine.stdout is not None
        machine.stdin.write("write -P 5 0 64k\n")
        machine.stdin.flush()
        while "wrote" not in machine.stdout.readline():
            pass
        calls = (
            lambda: images.save(image.token, "s"),
            lambda: images.overlay(image.token),
            lambda: images.merge(image.token),
            lambda: images.rebase(image.token, None),
            lambda: images.remove(image.token),
            lambda: images.check(image.token),
            lambda: images.image(image.token),
        )
        for call in calls:
            with pytest.raises(RefusedError) as refused:
                call()
            assert refused.value.code == "in_use"
        machine.stdin.close()
    assert holds(image, 5, count=65536)
    images.save(image.token, "s")


def test_what_comes_from_elsewhere_is_copied(images: Images, tmp_path: Path) -> None:
    raw, foreign = tmp_path / "raw", tmp_path / "foreign"
    raw.write_bytes(b"\x09" * MIB + b"\xff" * 700)
    subprocess.run(["qemu-img", "convert", "-f", "raw", "-O", "qcow2", raw, foreign], check=True)
    for source, form in ((raw, "raw"), (foreign, "qcow2")):
        image = images.adopt(os.fsencode(source), form)  # type: ignore[arg-type]
        assert holds(image, 9)
        assert image.base is None
    for path in (raw, foreign):
        path.unlink()
    assert all(holds(images.image(token), 9) for token in images.images())


def test_a_raw_disk_that_looks_like_an_image_is_taken_for_what_it_is(images: Images, tmp_path: Path) -> None:
    """What is on a disk is its user's, who may have written a header that names any file."""
    (tmp_path / "secret").write_bytes(b"s" * MIB)
    trap = tmp_path / "trap"
    subprocess.run(
        ["qemu-img", "create", "-q", "-f", "qcow2", "-b", tmp_path / "secret", "-F", "raw", trap], check=True
    )
    image = images.adopt(os.fsencode(trap), "raw")
    data = trap.read_bytes()
    assert holds(image, data[-1], len(data) - 512, 512)
    assert (
        b"s" * 1000
        not in subprocess.run(
            ["qemu-img", "convert", "-f", "qcow2", "-O", "raw", image.path, "/dev/stdout"],
            capture_output=True,
            check=False,
        ).stdout
    )


def test_an_image_that_refers_elsewhere_is_refused(images: Images, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"s" * MIB)
    trap = tmp_path / "trap"
    for more in (["-b", tmp_path / "secret", "-F", "raw"], ["-o", f"data_file={tmp_path / 'data'}"]):
        trap.unlink(missing_ok=True)
        subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", *more, trap, "1M"], check=True)
        with pytest.raises((RefusedError, FormatError)):
            images.adopt(os.fsencode(trap), "qcow2")
    link = tmp_path / "link"
    link.symlink_to("secret")
    for source in (link, tmp_path, tmp_path / "none", Path("/dev/zero"), tmp_path / "secret"):
        with pytest.raises((RefusedError, FormatError, NotFoundError, StorageError)):
            images.adopt(os.fsencode(source), "qcow2")
    assert images.images() == ()


def retold(path: bytes, name: bytes, form: bytes) -> None:
    """Have an image name another base, by writing to its header."""
    header = read_header(path)
    assert header.backing is not None
    with open(path, "r+b") as file:
        data = bytearray(file.read(65536))
        at = struct.unpack_from(">Q", data, 8)[0]
        data[at : at + len(name)] = name
        data[16:20] = struct.pack(">I", len(name))
        found = data.index(struct.pack(">II", 0xE2792ACA, 5) + b"qcow2")
        data[found + 8 : found + 8 + len(form)] = form
        data[found + 4 : found + 8] = struct.pack(">I", len(form))
        file.seek(0)
        file.write(data)


@pytest.mark.parametrize(
    ("name", "form"),
    [
        (b"/etc/passwd", b"raw"),
        (b"/etc/passwd", b"qcow2"),
        (b"../secret", b"qcow2"),
        (b"secret.qcow2", b"qcow2"),
        (b"nbd:localhost:1", b"qcow2"),
        (b'json:{"driver":"file","filename":"/x"}', b"qcow2"),
        (None, b"raw"),
        (None, b""),
    ],
)
def test_an_image_whose_base_was_retold_is_not_opened(
    images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: bytes | None, form: bytes
) -> None:
    base = images.create(MIB)
    top = images.overlay(base.token)
    retold(top.path, os.path.basename(base.path) if name is None else name, form)
    (tmp_path / "spoiled").touch()

    def never(*_: object, **__: object) -> None:
        raise AssertionError("qemu-img was run")

    with monkeypatch.context() as patched:
        patched.setattr(qemu_img, "execute", never)
        for call in (
            lambda: images.image(top.token),
            lambda: images.check(top.token),
            lambda: images.overlay(top.token),
            lambda: images.save(top.token, "s"),
            lambda: images.merge(top.token),
            lambda: images.rebase(top.token, None),
        ):
            with pytest.raises(FormatError):
                call()
    images.remove(top.token)
    images.remove(base.token)


def test_images_that_stand_on_each_other_in_a_circle(images: Images, tmp_path: Path) -> None:
    base = images.create(MIB)
    one = images.overlay(base.token)
    two = images.overlay(one.token)
    (tmp_path / "spoiled").touch()
    retold(one.path, os.path.basename(two.path), b"qcow2")
    with pytest.raises(FormatError, match="stands on itself"):
        images.image(one.token)


def test_sizes_and_tokens_that_cannot_be(images: Images) -> None:
    for size in (0, -512, 511, 513, 1 << 43):
        with pytest.raises(UsageError):
            images.create(size)
    for token in ("", "../x", "0" * 16, "x" * 16, "é", "0" * 15 + "\n"):
        with pytest.raises(NotFoundError):
            images.image(token)  # type: ignore[arg-type]
        if token != "0" * 16:
            with pytest.raises(NotFoundError):
                images.remove(token)  # type: ignore[arg-type]
    assert images.images() == []


def test_no_image_grows_beyond_its_limit(tmp_path: Path) -> None:
    small = Images(os.fsencode(tmp_path / "images"), max_bytes=2 * MIB)
    raw = tmp_path / "raw"
    raw.write_bytes(os.urandom(2 * MIB))
    with pytest.raises(StorageError) as failed:
        small.adopt(os.fsencode(raw), "raw")
    assert "may have" in (failed.value.hint or "")
    assert small.images() == []
    assert os.listdir(tmp_path / "images") == ["lock"]


def test_without_the_program_it_is_said(images: Images, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnsupportedError):
        images.create(MIB)
    monkeypatch.undo()


def test_killed_at_any_moment_what_is_there_is_whole(tmp_path: Path) -> None:
    """I3: nothing is left of what was being made, and no disk holds anything else than before or after."""
    images = Images(os.fsencode(tmp_path / "images"))
    base = images.create(4 * MIB)
    write(base, 1)
    kept = images.overlay(base.token)
    write(kept, 2, MIB)

    def work() -> None:
        made = images.overlay(kept.token)
        images.save(made.token, "s")
        images.drop(made.token, "s")
        images.rebase(made.token, base.token)
        images.remove(made.token)
        more = images.overlay(kept.token)
        images.merge(more.token)
        images.create(MIB)

    calls = ((os, "rename"), (os, "fsync"), (os, "unlink"), (os, "chmod"), (qemu_img, "execute"))
    at, killed = 0, True
    while killed:
        at += 1
        killed = run_killed(work, at, calls=calls).killed
        others: set[Token] = set(images.images()) - {base.token, kept.token}
        for token in others:
            image = images.image(token)
            if image.size == 4 * MIB:
                assert holds(image, 1)
                assert holds(image, 2, MIB)
            images.remove(token)
        images.create(MIB)
        images.remove((set(images.images()) - {base.token, kept.token}).pop())
        assert sorted(os.listdir(tmp_path / "images")) == sorted([f"{base.token}.qcow2", f"{kept.token}.qcow2", "lock"])
        assert holds(kept, 1)
        assert holds(kept, 2, MIB)
        assert not images.check(kept.token).corruptions
    assert at > 25
