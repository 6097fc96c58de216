"""Containers' images become root file systems; hostile ones become errors."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from holdfast.model.errors import EscapeError, FormatError, HoldfastError, NotFoundError, UnsupportedError
from holdfast.sandbox.images import oci_archive, root_tree, tar_format
from holdfast.sandbox.images.oci_archive import flatten

from ....containers import ARCHITECTURE, PYTHON, configuration, digest, directory, docker, files, link, member, oci, tar


class Flat:
    """What an archive was made to."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0
        self.python = ""

    def __call__(self, archive: bytes) -> dict[str, tarfile.TarInfo]:
        self._number += 1
        work = self._folder / str(self._number)
        work.mkdir()
        (work / "in.tar").write_bytes(archive)
        path = os.fsencode(work)
        before = sorted(self._folder.parent.rglob("*"))
        self.python = flatten(path + b"/in.tar", path + b"/out.tar", architecture=ARCHITECTURE, work=path)
        assert [one for one in sorted(self._folder.parent.rglob("*")) if one.parent != work] == [
            one for one in before if one.parent != work
        ]
        with tarfile.open(work / "out.tar") as found:
            members = found.getmembers()
            self.content = {one.name: found.extractfile(one).read() for one in members if one.isreg()}  # pyright: ignore[reportOptionalMemberAccess]
        assert len({one.name for one in members}) == len(members)
        return {one.name: one for one in members}


@pytest.fixture
def flat(tmp_path: Path) -> Flat:
    folder = tmp_path / "in"
    folder.mkdir()
    return Flat(folder)


@pytest.mark.parametrize(
    "archive",
    [
        docker(PYTHON),
        docker(PYTHON, pack=gzip.compress),
        gzip.compress(docker(PYTHON)),
        oci(PYTHON),
        oci(PYTHON, pack=zstandard.compress),
        oci(PYTHON, pack=bytes),
        oci(PYTHON, nested=True),
        zstandard.compress(oci(PYTHON)),
    ],
    ids=["docker", "docker-gzip", "docker-whole-gzip", "oci", "oci-zstd", "oci-plain", "oci-nested", "oci-whole-zstd"],
)
def test_every_form_is_read(flat: Flat, archive: bytes) -> None:
    found = flat(archive)
    assert sorted(found) == ["bin", "usr", "usr/bin", "usr/bin/python3", "usr/bin/python3.11"]
    assert flat.python == "/usr/bin/python3"
    assert flat.content["usr/bin/python3.11"] == b"\x7fELF"


def test_a_later_layer_lies_over_an_earlier_one(flat: Flat) -> None:
    found = flat(
        docker(PYTHON, tar(member("a", b"1"), member("d/x", b"1")), tar(member("a", b"22"), member("d/y", b"2")))
    )
    assert flat.content["a"] == b"22"
    assert {"d/x", "d/y"} <= found.keys()


def test_whiteouts_are_about_lower_layers_alone(flat: Flat) -> None:
    lower = tar(member("gone"), member("d/x"), member("d/sub/y"), member("kept/x"), member("f/x"))
    upper = tar(
        member("d/new"),
        member("d/.wh..wh..opq"),
        member(".wh.gone"),
        member("gone", b"again"),
        member("kept/.wh.nothing"),
        member(".wh.f"),
        member("nowhere/.wh.x"),
    )
    found = flat(docker(PYTHON, lower, upper))
    assert flat.content["gone"] == b"again"
    assert {name for name in found if name.startswith(("d", "kept", "f", "nowhere"))} == {
        "d",
        "d/new",
        "kept",
        "kept/x",
    }


def test_a_file_takes_the_place_of_a_directory_and_back(flat: Flat) -> None:
    found = flat(docker(PYTHON, tar(member("a/x"), member("b")), tar(member("a"), directory("b"), member("b/x"))))
    assert {name for name in found if name[0] in "ab" and name != "bin"} == {"a", "b", "b/x"}
    assert found["a"].isreg()


def test_a_directory_that_comes_again_keeps_what_is_in_it(flat: Flat) -> None:
    found = flat(docker(PYTHON, tar(directory("d"), member("d/x")), tar(directory("d", 0o700))))
    assert found["d"].mode == 0o700
    assert "d/x" in found


def test_links_on_the_way_lead_to_places_inside(flat: Flat) -> None:
    found = flat(docker(PYTHON, tar(link("out", "../../../../usr"), link("loop", "loop")), tar(member("out/bin/x"))))
    assert "usr/bin/x" in found
    assert found["out"].linkname == "../../../../usr"


@pytest.mark.parametrize("name", ["loop/x", "a/x"])
def test_a_way_that_leads_nowhere_is_damage(flat: Flat, name: str) -> None:
    with pytest.raises(FormatError, match="below a file"):
        flat(docker(PYTHON, tar(link("loop", "loop"), member("a")), tar(member(name))))


def test_hard_links_stay_one_file(flat: Flat) -> None:
    found = flat(docker(PYTHON, tar(member("a", b"content"), link("b", "a", hard=True), link("c", "b", hard=True))))
    assert (found["b"].type, found["b"].linkname) == (tarfile.LNKTYPE, "a")
    assert (found["c"].type, found["c"].linkname) == (tarfile.LNKTYPE, "a")


@pytest.mark.parametrize("target", ["nowhere", "usr", "", "x/y"])
def test_a_hard_link_to_no_file_is_damage(flat: Flat, target: str) -> None:
    with pytest.raises(FormatError, match="hard link"):
        flat(docker(PYTHON, tar(link("b", target, hard=True))))


def test_attributes_and_owners_are_kept(flat: Flat) -> None:
    long = "d/" * 60 + "n" * 200
    about = {"SCHILY.xattr.security.capability": "\1\0\2x", "SCHILY.xattr.trusted.overlay.redirect": "/etc"}
    found = flat(
        docker(
            PYTHON,
            tar(
                member("cap", b"x", mode=0o4755, uid=3_000_000_000, gid=5, mtime=1234, pax_headers=about),
                member(long, b"deep"),
                member("dev", type=tarfile.CHRTYPE, devmajor=1, devminor=3),
                member("fifo", type=tarfile.FIFOTYPE),
            ),
        )
    )
    cap = found["cap"]
    assert (cap.mode, cap.uid, cap.gid, cap.mtime) == (0o4755, 3_000_000_000, 5, 1234)
    assert {name for name in cap.pax_headers if "xattr" in name} == {"SCHILY.xattr.security.capability"}
    assert flat.content[long] == b"deep"
    assert (found["dev"].devmajor, found["dev"].devminor) == (1, 3)
    assert found["fifo"].isfifo()


def test_names_of_gnu_are_read(flat: Flat) -> None:
    long = "n" * 200
    flat(docker(PYTHON, tar(member(long, b"x"), form=tarfile.GNU_FORMAT)))
    assert flat.content[long] == b"x"


# -- Python -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (tar(member("bin/sh")), "no python3"),
        (tar(member("opt/bin/python3")), "no python3"),
        (tar(link("bin/python3", "nowhere")), "no python3"),
        (tar(member("usr/bin/python3.7"), link("usr/bin/python3", "python3.7")), "is 3.7"),
        (tar(member("usr/bin/python3"), directory("usr/lib/python3.6")), "is 3.6"),
    ],
)
def test_a_python_is_needed(flat: Flat, layer: bytes, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message) as raised:
        flat(docker(layer))
    assert raised.value.code == "image_without_python"


@pytest.mark.parametrize(
    ("layer", "path"),
    [
        (
            tar(member("usr/local/bin/python3.12"), link("usr/local/bin/python3", "python3.12")),
            "/usr/local/bin/python3",
        ),
        (tar(member("opt/py/python3.8"), link("bin/python3", "/opt/py/python3.8")), "/bin/python3"),
        (tar(member("usr/bin/python3"), directory("usr/lib/python3.13")), "/usr/bin/python3"),
        (tar(member("usr/bin/python3")), "/usr/bin/python3"),
    ],
)
def test_pythons_that_will_do(flat: Flat, layer: bytes, path: str) -> None:
    flat(docker(layer))
    assert flat.python == path


# -- hostile ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/../x", "..", "usr/.."])
def test_names_that_lead_out_are_refused(flat: Flat, name: str) -> None:
    with pytest.raises(EscapeError, match="leads elsewhere"):
        flat(docker(PYTHON, tar(member(name))))
    with pytest.raises(EscapeError):
        flat(docker(PYTHON, tar(link("x", name, hard=True))))


def test_names_are_bounded(flat: Flat) -> None:
    for name in ("n" * 256, "d/" * 401 + "x", "n" * 5000):
        with pytest.raises(FormatError):
            flat(docker(PYTHON, tar(member(name))))
    deep = [tar(link(f"l{number}", "d/" * 300), directory("d/" * 300)) for number in range(3)]
    with pytest.raises(FormatError):
        flat(docker(PYTHON, *deep, tar(member("l0/" + "e/" * 300 + "x"))))


def test_a_huge_header_is_not_read(flat: Flat) -> None:
    about = member("x", type=tarfile.XHDTYPE, size=1 << 30)
    with pytest.raises(FormatError, match="too long a header"):
        flat(docker(PYTHON, tar(about)))


def test_a_huge_member_is_no_more_than_there_is(flat: Flat) -> None:
    for size in (1 << 20, 1 << 60):
        about, _ = member("x", size=size)
        with pytest.raises(FormatError, match="cut short"):
            flat(docker(PYTHON, tar((about, b""), form=tarfile.GNU_FORMAT)))


def test_bombs_are_refused(flat: Flat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oci_archive, "_FREE_BYTES", 1 << 20)
    for pack in (gzip.compress, zstandard.compress):
        with pytest.raises(FormatError, match="is refused"):
            flat(docker(PYTHON, tar(member("zeros", bytes(32 << 20))), pack=pack))
    monkeypatch.setattr(oci_archive, "MAX_BYTES", 1 << 20)
    with pytest.raises(FormatError, match="more than"):
        flat(docker(PYTHON, tar(member("much", os.urandom(2 << 20)))))


def test_a_window_of_zstd_is_bounded(flat: Flat) -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=30)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    layer = stream.compress(PYTHON) + stream.flush()
    with pytest.raises(FormatError, match="damaged"):
        flat(oci(PYTHON, pack=lambda _: layer))


def test_too_many_files_are_refused(flat: Flat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(root_tree, "MAX_ENTRIES", 10)
    with pytest.raises(FormatError, match="more than 10 files"):
        flat(docker(PYTHON, tar(*(member(str(number)) for number in range(20)))))
    monkeypatch.setattr(oci_archive, "_MAX_MEMBERS", 3)
    with pytest.raises(FormatError, match="no container"):
        flat(docker(PYTHON, PYTHON, PYTHON))


def test_directories_that_are_only_implied_are_counted(flat: Flat, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a kilobyte names some hundred of them."""
    monkeypatch.setattr(root_tree, "MAX_ENTRIES", 1000)
    with pytest.raises(FormatError, match="more than 1000 files"):
        flat(docker(PYTHON, tar(*(member(f"{number}/" + "d/" * 90 + "x") for number in range(20)))))


def test_what_is_held_in_memory_is_bounded(flat: Flat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(root_tree, "MAX_HELD_BYTES", 10_000)
    attribute = {"SCHILY.xattr.user.x": "v" * 1000}
    with pytest.raises(FormatError, match="more than 10000 bytes"):
        flat(docker(PYTHON, tar(*(member(str(number), pax_headers=attribute) for number in range(20)))))
    # A short name, by a link, is a long one for each name of the file.
    long = directory("n/" * 300), link("l", "n/" * 300)
    pairs = [
        one for number in range(20) for one in (member(f"l/{number}"), link(f"l/{number}h", f"l/{number}", hard=True))
    ]
    with pytest.raises(FormatError, match="more than 10000 bytes"):
        flat(docker(PYTHON, tar(*long, *pairs)))


def test_attributes_are_no_files_that_come_later(flat: Flat) -> None:
    """An archive of a megabyte would say a hundred thousand attributes of each of ten thousand files."""
    about = tarfile.TarInfo.create_pax_global_header({"SCHILY.xattr.user.x": "shared"})
    name, _ = member("x", pax_headers={"SCHILY.xattr.user.own": "y"})
    found = flat(docker(PYTHON, tar()[:-1024] + about + tar((name, b""))))
    assert {key for key in found["x"].pax_headers if "xattr" in key} == {"SCHILY.xattr.user.own"}


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE], ids=["of the next", "of all"])
def test_headers_do_not_add_up(flat: Flat, kind: bytes) -> None:
    value = "v" * (900 << 10)
    headers = [tarfile.TarInfo.create_pax_global_header({f"key{number}": value}) for number in range(2)]
    if kind == tarfile.XHDTYPE:
        headers = [_as_header_of_the_next(one) for one in headers]
    with pytest.raises(FormatError, match="too long a header"):
        flat(docker(PYTHON, b"".join(headers) + tar(member("x"))))


def _as_header_of_the_next(header: bytes) -> bytes:
    about = tarfile.TarInfo.frombuf(header[:512], "utf-8", "surrogateescape")
    about.type = tarfile.XHDTYPE
    return about.tobuf(tarfile.USTAR_FORMAT) + header[512:]


def test_links_that_lead_to_and_fro_have_an_end(flat: Flat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(root_tree, "_MAX_STEPS", 10_000)
    links = [link(f"l{number}", "d/../" * 500 + f"l{number + 1}") for number in range(30)]
    with pytest.raises(FormatError, match="to and fro"):
        flat(docker(PYTHON, tar(directory("d"), *links, member("l0/x"))))


def test_sparse_members_are_refused(flat: Flat) -> None:
    for about in (member("x", type=tarfile.GNUTYPE_SPARSE), member("x", pax_headers={"GNU.sparse.map": "0,1"})):
        with pytest.raises(FormatError, match="of a kind that is not read"):
            flat(docker(PYTHON, tar(about)))


# -- damage -----------------------------------------------------------------------------------------------------------


def with_part(archive: bytes, name: str, content: bytes | None) -> bytes:
    """``archive`` with another file of this name; None: without."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as found:
        parts = {one.name: found.extractfile(one).read() for one in found.getmembers()}  # pyright: ignore[reportOptionalMemberAccess]
    parts.pop(name)
    return files(parts if content is None else {**parts, name: content})


def test_a_layer_that_is_not_what_its_hash_says(flat: Flat) -> None:
    with pytest.raises(FormatError, match="layer 1 is not what"):
        flat(with_part(docker(PYTHON), "0/layer.tar", tar(member("usr/bin/python3"))))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("0/layer.tar", None, "lacks 0/layer.tar"),
        ("config.json", None, "lacks config.json"),
        ("manifest.json", None, "neither index.json nor manifest.json"),
        ("manifest.json", b"[]", "holds 0 images"),
        ("manifest.json", b"[" * 100_000, "damaged"),
        ("manifest.json", b"{}", "damaged"),
        ("config.json", b"{}", "1 layers, and says that there are 0"),
        ("config.json", b" " * (5 << 20), "larger than"),
        ("0/layer.tar", b"no archive at all" * 100, "not what its SHA-256 says"),
    ],
)
def test_parts_that_are_damaged_or_missing(flat: Flat, name: str, content: bytes | None, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        flat(with_part(docker(PYTHON), name, content))


def test_blobs_of_oci_are_compared_with_their_names(flat: Flat) -> None:
    archive = oci(PYTHON)
    with tarfile.open(fileobj=io.BytesIO(archive)) as found:
        names = [one.name for one in found.getmembers() if one.name.startswith("blobs")]
    for name in names:
        with pytest.raises(FormatError):
            flat(with_part(archive, name, b"{}"))
        with pytest.raises(FormatError):
            flat(with_part(archive, name, None))


def test_other_architectures_are_named(flat: Flat) -> None:
    for archive in (docker(PYTHON, architecture="s390x"), oci(PYTHON, architecture="s390x", nested=True)):
        with pytest.raises(UnsupportedError, match="made for s390x"):
            flat(archive)


def test_indexes_that_are_named_again_and_again_have_an_end(flat: Flat) -> None:
    """Each of four names the next one five hundred times."""
    parts = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}'}
    data = json.dumps({"manifests": []}).encode()
    for _ in range(4):
        parts[f"blobs/{digest(data).replace(':', '/')}"] = data
        one = {"mediaType": "application/vnd.oci.image.index.v1+json", "digest": digest(data), "size": len(data)}
        data = json.dumps({"manifests": [one] * 500}).encode()
    with pytest.raises(FormatError, match="more than 2000 images"):
        flat(files({**parts, "index.json": data}))


def test_several_images_are_refused(flat: Flat) -> None:
    one = {"Config": "config.json", "Layers": ["0/layer.tar"]}
    with pytest.raises(FormatError, match="2 images"):
        flat(with_part(docker(PYTHON), "manifest.json", json.dumps([one, one]).encode()))


def test_what_is_no_archive(flat: Flat, tmp_path: Path) -> None:
    for content in (b"", b"text", b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", os.urandom(2048), bytes(1024)):
        with pytest.raises(FormatError):
            flat(content)
    with pytest.raises(NotFoundError):
        flatten(os.fsencode(tmp_path / "none"), b"/none", architecture="amd64", work=os.fsencode(tmp_path))


def test_a_layer_may_be_packed_in_many_pieces_but_not_in_any_number(
    flat: Flat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What holds nothing has 20 bytes, and takes as long to unpack as a block of a file's."""
    layer = tar(member("a", b"content" * 100))

    def packed(empty: int) -> Callable[[bytes], bytes]:
        def pack(data: bytes) -> bytes:
            pieces = [gzip.compress(data[at : at + 512]) for at in range(0, len(data), 512)]
            return gzip.compress(b"") * (empty if data == layer else 0) + b"".join(pieces)

        return pack

    monkeypatch.setattr(oci_archive, "_MAX_PACKED_MEMBERS", 10_000)
    flat(docker(PYTHON, layer, pack=packed(5000)))
    assert flat.content["a"] == b"content" * 100
    with pytest.raises(FormatError, match="packed in more than 10000 pieces"):
        flat(docker(PYTHON, layer, pack=packed(10_000)))


def test_damage_anywhere_is_an_error_of_ours(flat: Flat) -> None:
    chance = random.Random(22)
    for archive in (docker(PYTHON, tar(member("x", b"y", pax_headers={"uid": "7"}))), oci(PYTHON, nested=True)):
        for _ in range(150):
            at = chance.randrange(len(archive))
            changed = archive[:at] + bytes([archive[at] ^ (1 << chance.randrange(8))]) + archive[at + 1 :]
            try:
                flat(changed)
            except HoldfastError:
                pass
        for _ in range(30):
            try:
                flat(archive[: chance.randrange(len(archive))])
            except HoldfastError:
                pass


def test_what_is_written_is_read_again() -> None:
    about = tar_format.TarMember(
        b"n" * 150, "link", 0o777, 1 << 24, 1 << 31, 5, 0, 0, b"t" * 150, (0, 0), {b"user.\xff": b"a\nb=\xff"}
    )
    written = tar_format.header_of(about) + bytes(1024)
    (found,) = tar_format.read_members(io.BytesIO(written), "it")
    assert found._replace(offset=0) == about


def test_a_configuration_says_what_the_layers_are() -> None:
    assert json.loads(configuration([PYTHON]))["architecture"] == ARCHITECTURE
