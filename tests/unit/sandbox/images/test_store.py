"""The images of a home: put in place whole, found only if they are sound, removed without disturbing anything."""

from __future__ import annotations

import os
import stat
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast.model.errors import FormatError, IntegrityError, NotFoundError, UnsupportedError, UsageError
from holdfast.sandbox.images.manifest import Image, ImageManifest, decode_manifest, encode_manifest
from holdfast.sandbox.images.store import ImageStore

from ....containers import PYTHON, docker, member, oci, tar
from ....images import files_of, put_image


def path(home: bytes, *parts: str) -> Path:
    return Path(os.fsdecode(home)).joinpath("images", *parts)


def test_what_was_put_in_place_is_found(store: ImageStore) -> None:
    put = put_image(store, "default", root=b"the root")
    found = store.find()
    assert found == put
    assert (found.name, len(found.id)) == ("default", 32)
    assert Path(os.fsdecode(found.root)).read_bytes() == b"the root"
    assert Path(os.fsdecode(found.kernel)).read_bytes() == b"kernel"
    assert Path(os.fsdecode(found.initrd)).read_bytes() == b"initrd"
    assert found.manifest.root.bytes == 8
    assert found.manifest.modules == ("virtio",)


def test_it_is_the_users_alone(store: ImageStore, home: bytes) -> None:
    put_image(store, "one")
    top = path(home)
    for found in (top, *top.rglob("*")):
        assert stat.S_IMODE(found.stat().st_mode) == (0o700 if found.is_dir() else 0o600), found


def test_a_home_without_images(store: ImageStore, home: bytes) -> None:
    assert store.list() == []
    with pytest.raises(NotFoundError) as raised:
        store.find("other")
    assert (raised.value.code, raised.value.hint) == ("no_such_image", "`holdfast image build other` builds one")
    with pytest.raises(NotFoundError):
        store.remove("other")
    assert files_of(home) == []


@pytest.mark.parametrize("name", ["", ".", "..", ".files", "-x", "a/b", "a\0b", "n" * 65, "é", "a\n"])
def test_names_that_are_none(store: ImageStore, home: bytes, name: str) -> None:
    for use in (store.find, store.remove, lambda name: store.import_archive(name, b"/none", print)):
        with pytest.raises(UsageError):
            use(name)
    assert not path(home).exists()


def test_all_are_listed_by_name(store: ImageStore) -> None:
    for name in ("b", "a", "C.1"):
        put_image(store, name, root=name.encode())
    assert [one.name for one in store.list()] == ["C.1", "a", "b"]


def test_files_are_shared_and_deleted_with_their_last_image(store: ImageStore, home: bytes) -> None:
    one, two = put_image(store, "one", root=b"1"), put_image(store, "two", root=b"2")
    assert one.kernel == two.kernel
    assert len(list(path(home, ".files").iterdir())) == 4
    store.remove("one")
    assert store.list() == [two]
    assert len(list(path(home, ".files").iterdir())) == 3
    store.remove("two")
    assert files_of(home) == [".files"]


def test_another_of_the_same_name_takes_its_place(store: ImageStore, home: bytes) -> None:
    before = put_image(store, "one", root=b"before")
    after = put_image(store, "one", root=b"after")
    assert store.find("one") == after != before
    assert not os.path.exists(before.root)
    assert len(list(path(home, ".files").iterdir())) == 3


def test_what_is_open_stays_as_it_is(store: ImageStore) -> None:
    image = put_image(store, "one", root=b"in use")
    with open(image.root, "rb") as root:
        put_image(store, "one", root=b"after")
        store.remove("one")
        assert root.read() == b"in use"


# -- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["kernel", "initrd", "root"])
def test_files_that_are_missing_cut_short_or_changed(store: ImageStore, part: str) -> None:
    file = Path(os.fsdecode(getattr(put_image(store, "one"), part)))
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    with pytest.raises(IntegrityError, match=r"the image one is damaged.*bytes, not") as raised:
        store.find("one")
    assert "holdfast image build one" in str(raised.value.hint)
    file.write_bytes(whole[:-1] + b"!")
    with pytest.raises(IntegrityError, match="SHA-256"):
        store.find("one")
    file.write_bytes(whole)
    store.find("one")
    file.unlink()
    with pytest.raises(IntegrityError, match="is missing"):
        store.find("one")


def test_a_damaged_one_is_replaced_by_the_same(store: ImageStore) -> None:
    image = put_image(store, "one")
    Path(os.fsdecode(image.root)).write_bytes(b"r00t")
    assert put_image(store, "one").root == image.root
    assert Path(os.fsdecode(store.find("one").root)).read_bytes() == b"root"


def test_every_byte_of_the_manifest_counts(store: ImageStore, home: bytes) -> None:
    put_image(store, "one")
    manifest = path(home, "one", "manifest")
    whole = manifest.read_bytes()
    for at in range(len(whole)):
        manifest.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(FormatError, match="manifest"):
            store.find("one")
    for length in range(len(whole)):
        manifest.write_bytes(whole[:length])
        with pytest.raises(FormatError):
            store.find("one")


def test_damage_to_one_hides_no_other(store: ImageStore, home: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    put_image(store, "bad", root=b"1")
    good = put_image(store, "good", root=b"2")
    path(home, "bad", "manifest").write_bytes(b"HFIM 2 ")
    warnings: list[str] = []
    log = SimpleNamespace(warning=lambda text, *more: warnings.append(text % more))
    monkeypatch.setattr("holdfast.sandbox.images.store._LOG", log)
    assert store.list() == [good]
    assert "bad" in warnings[0]
    # While it cannot be read, what is needed is not known.
    store.remove("good")
    assert len(list(path(home, ".files").iterdir())) == 4
    store.remove("bad")
    assert files_of(home) == [".files"]


def test_manifests_say_what_they_are(store: ImageStore) -> None:
    manifest = put_image(store, "one").manifest
    assert decode_manifest(encode_manifest(manifest), b"/f") == manifest
    for wrong in (b"{}", b"[]", encode_manifest(manifest).replace(b'"version":1', b'"version":2')):
        with pytest.raises(FormatError):
            decode_manifest(wrong, b"/f")
    more = encode_manifest(manifest).replace(b"{", b'{"new":1,', 1)
    with pytest.raises(FormatError, match="new"):
        decode_manifest(more, b"/f")
    elsewhere = encode_manifest(manifest).replace(manifest.root.sha256.encode(), b"../../../etc/passwd")
    with pytest.raises(FormatError, match="SHA-256"):
        decode_manifest(elsewhere, b"/f")


# -- several at once --------------------------------------------------------------------------------------------------


def test_many_at_once(home: bytes) -> None:
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            store = ImageStore(home)
            for turn in range(8):
                put_image(store, "shared", root=b"%d" % number)
                put_image(store, f"own{number}", root=b"%d.%d" % (number, turn))
                store.find(f"own{number}")
                store.list()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    store = ImageStore(home)
    assert [one.name for one in store.list()] == ["own0", "own1", "own2", "own3", "shared"]
    needed = {file.sha256 for one in store.list() for file in one.manifest.files()}
    assert {one.name for one in path(home, ".files").iterdir()} == needed


def test_what_another_process_makes_is_not_swept(home: bytes) -> None:
    with ImageStore(home)._making() as work:
        put_image(ImageStore(home), "one")
        assert os.path.isdir(work)
    assert not os.path.exists(work)


def test_what_was_left_is_swept(store: ImageStore, home: bytes) -> None:
    left = path(home, ".new-0123456789abcdef")
    (left / "tmp").mkdir(parents=True)
    (left / "tmp/file").write_text("x")
    put_image(store, "one")
    assert not left.exists()


def test_a_failure_leaves_nothing(store: ImageStore, home: bytes, tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(b"bad")
    before = put_image(store, "one")
    held = files_of(home)
    with pytest.raises(FormatError):
        store.import_archive("one", os.fsencode(tmp_path / "bad"), lambda _: None)
    assert files_of(home) == held
    assert store.find("one") == before


# -- imports ----------------------------------------------------------------------------------------------------------


def imported(store: ImageStore, tmp_path: Path, archive: bytes) -> Image:
    (tmp_path / "archive").write_bytes(archive)
    return store.import_archive("app", os.fsencode(tmp_path / "archive"), lambda _: None)


@pytest.mark.usefixtures("needs_mksquashfs")
@pytest.mark.parametrize("form", [docker, oci])
def test_a_containers_image_becomes_one(store: ImageStore, tmp_path: Path, form) -> None:
    kernel = put_image(store, "default")
    app = imported(store, tmp_path, form(PYTHON, tar(member("app/file", b"content", uid=1000, mode=0o640))))
    assert (app.kernel, app.initrd) == (kernel.kernel, kernel.initrd)
    assert (app.manifest.source, app.manifest.python) == ("archive", "/usr/bin/python3")
    assert app.manifest.kernel_release == "6.1"
    listed = subprocess.run(["unsquashfs", "-lln", app.root], capture_output=True, text=True, check=True).stdout
    assert any(
        line.startswith("-rw-r----- 1000/0") and line.endswith("squashfs-root/app/file") for line in listed.splitlines()
    )
    content = subprocess.run(["unsquashfs", "-cat", app.root, "app/file"], capture_output=True, check=True).stdout
    assert content == b"content"


@pytest.mark.usefixtures("needs_mksquashfs")
def test_one_without_python_is_none(store: ImageStore, tmp_path: Path) -> None:
    put_image(store, "default")
    with pytest.raises(UnsupportedError, match="python3"):
        imported(store, tmp_path, docker(tar(member("bin/sh"))))
    assert [one.name for one in store.list()] == ["default"]


def test_the_kernel_of_the_default_image_comes_first(store: ImageStore) -> None:
    put_image(store, "a", kernel=b"older")
    put_image(store, "b", kernel=b"newer")
    assert (boot := store._boot_parts_here()) is not None
    assert Path(os.fsdecode(boot.kernel)).read_bytes() == b"newer"
    put_image(store, "default", kernel=b"default")
    put_image(store, "c", kernel=b"newest")
    assert (boot := store._boot_parts_here()) is not None
    assert Path(os.fsdecode(boot.kernel)).read_bytes() == b"default"


def test_a_kernel_with_another_first_program_is_not_taken(
    store: ImageStore, home: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_image(store, "default")
    assert store._boot_parts_here() is not None
    monkeypatch.setattr("holdfast.sandbox.images.store.init_key", lambda: "f" * 64)
    assert store._boot_parts_here() is None


def test_a_manifest_names_its_fields() -> None:
    assert set(ImageManifest.__struct_fields__) >= {"version", "architecture", "kernel", "initrd", "root", "created_at"}
