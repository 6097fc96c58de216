"""Many loose objects are kept for forks as few packs, with each object that was there."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.model.errors import RefusedError, StorageError
from holdfast.snapshot.git import _loose_objects as loose_objects
from holdfast.snapshot.git import fork_objects
from holdfast.snapshot.git._loose_objects import names_in
from holdfast.snapshot.git.fork_objects import ForkObjects

from .conftest import Beside, User
from .test_fork_objects import collect
from .test_forks_stay_whole import check, work_in

Make = Callable[..., Beside]


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten loose objects are packed."""
    monkeypatch.setattr(fork_objects, "MANY", 10)


@pytest.fixture(params=["sha1", "sha256"])
def theirs(tmp_path: Path, request: pytest.FixtureRequest) -> User:
    """A repository with loose objects of every kind and size."""
    (tmp_path / "tree").mkdir()
    user = User(tmp_path / "tree")
    user.git("init", "--quiet", "--initial-branch=main", f"--object-format={request.param}")
    for size in (0, 1, 15, 16, 2_047, 2_048, 40_000, 700_000, 2_000_000):
        user.write(f"d/{size}", os.urandom(size // 2).hex())
    for number in range(30):
        user.write(f"many/{number}", f"{number}\n" * 100)
    user.commit()
    user.git("tag", "-a", "-m", "a tag", "v1")
    return user


def objects_in(store: Path) -> dict[str, bytes]:
    """Every object that Git finds in a directory of objects, with what it holds."""
    asking = User(store.parent / "asking")
    asking.root.mkdir(exist_ok=True)
    digits = 62 if any(len(path.name) == 62 for path in store.parent.rglob("*")) else 38
    kind = "sha256" if digits == 62 or list(store.glob("pack/*loose-" + "?" * 64 + ".pack")) else "sha1"
    asking.git("init", "--quiet", f"--object-format={kind}")
    (asking.root / ".git/objects/info/alternates").write_text(f"{store}\n")
    listed = asking.git("cat-file", "--batch-all-objects", "--batch-check=%(objectname) %(objecttype)").splitlines()
    asking.git("fsck", "--full", "--strict", "--no-dangling")
    return {line: asking.git("cat-file", *line.split()[::-1]).encode("utf-8", "surrogateescape") for line in listed}


def files_in(store: Path) -> list[str]:
    return sorted(str(path.relative_to(store)) for path in store.rglob("*") if path.is_file())


def test_every_object_is_there_in_one_pack_but_what_is_large(theirs: User, tmp_path: Path) -> None:
    store = theirs.git_dir / "objects"
    before = objects_in(store)
    assert ForkObjects(bytes(tmp_path / "kept")).take([bytes(store)], most_bytes=0) > 1_500_000
    files = files_in(tmp_path / "kept")
    assert len(files) == 3
    assert [name.rpartition(".")[2] for name in files if name.startswith("pack/holdfast-loose-")] == ["idx", "pack"]
    assert objects_in(tmp_path / "kept") == before
    assert ForkObjects(bytes(tmp_path / "kept")).take([bytes(store)], most_bytes=0) == 0
    assert files_in(tmp_path / "kept") == files, "what is in there is not missing"
    theirs.write("few", "more")
    theirs.commit()
    ForkObjects(bytes(tmp_path / "kept")).take([bytes(store)], most_bytes=0)
    assert len(files_in(tmp_path / "kept")) == 6, "few are copied by themselves"


def test_forks_of_forks_that_stand_on_them_stay_whole(theirs: User, beside: Make) -> None:
    one = beside(theirs)
    fork = work_in(one)
    theirs.git("checkout", "--quiet", "--orphan", "other")
    theirs.git("branch", "-D", "main")
    theirs.git("tag", "-d", "v1")
    theirs.git("rm", "-r", "--quiet", "--force", ".")
    theirs.write("a", "all else is gone\n")
    theirs.commit()
    collect(theirs)
    fork.write("many/3", "changed\n")
    fork.commit()
    check(fork)
    inner = work_in(beside(fork))
    inner.write("d/16", "changed\n")
    inner.commit()
    check(inner)
    check(work_in(one))
    assert "main" in fork.git("branch", "--list")


def index_that_claims(name: str) -> bytes:
    """An index of a pack without anything in it, which says that it has the object ``name``."""
    first = bytes.fromhex(name)
    counts = b"".join((1 if number >= first[0] else 0).to_bytes(4, "big") for number in range(256))
    return b"\xfftOc\0\0\0\2" + counts + first + bytes(8) + bytes(2 * len(first))


def test_a_pack_of_theirs_is_never_taken_for_one_of_ours(theirs: User, tmp_path: Path) -> None:
    """Or what it claims to have would not be kept, and what a fork stands on be missing."""
    store, new = theirs.git_dir / "objects", theirs.write("new", "new\n")
    claimed = index_that_claims(theirs.git("hash-object", new))
    (store / "pack").mkdir(exist_ok=True)
    for prefix in ("loose-", "holdfast-loose-"):
        (store / f"pack/{prefix}1.pack").write_bytes(b"PACK")
        (store / f"pack/{prefix}1.idx").write_bytes(claimed)
        if prefix == "loose-":
            ForkObjects(bytes(tmp_path / "kept")).take([bytes(store)], most_bytes=0)
        else:
            with pytest.raises(RefusedError, match=r"holdfast-loose-1\.idx") as refused:
                ForkObjects(bytes(tmp_path / "kept")).take([bytes(store)], most_bytes=0)
            assert refused.value.code == "git_objects"
        for path in (store / "pack").glob(f"{prefix}*"):
            path.unlink()
    theirs.commit()
    ForkObjects(bytes(tmp_path / "kept")).take([bytes(store)], most_bytes=0)
    assert theirs.git("rev-parse", "HEAD:new")[2:] in {path.name for path in (tmp_path / "kept").rglob("*")}


def test_packs_that_the_maintenance_of_git_makes_are_kept(theirs: User, beside: Make) -> None:
    theirs.git("maintenance", "run", "--task=loose-objects")
    theirs.git("prune-packed")
    assert list((theirs.git_dir / "objects/pack").glob("loose-*.idx"))
    check(work_in(beside(theirs)))


def test_an_index_names_no_more_than_it_has_room_for(theirs: User, tmp_path: Path) -> None:
    path = tmp_path / "x.idx"
    name = theirs.git("rev-parse", "HEAD")
    path.write_bytes(index_that_claims(name))
    assert names_in(bytes(path), len(name)) == {name}
    path.write_bytes(b"\xfftOc\0\0\0\2" + b"\xff" * 1024)
    with pytest.raises(StorageError, match="more objects than it has room for"):
        names_in(bytes(path), len(name))


def test_what_is_not_what_it_is_called_is_left_as_it_is(theirs: User, tmp_path: Path) -> None:
    """As long as nobody asks for it, it is no matter; Git says what it is."""
    store = theirs.git_dir / "objects"
    names = sorted(path for path in store.rglob("*") if len(path.name) in (38, 62))
    small = [path for path in names if path.stat().st_size < 500][:6]
    texts = (
        b"garbage",
        b"",
        zlib.compress(b"blob 3\0abcd"),
        zlib.compress(b"blob 4\0abcd"),
        zlib.compress(b"blob 9000000\0" + b"\0" * 9_000_000),
        zlib.compress(b"blob 4\0abcd")[:-3],
    )
    for path, text in zip(small, texts, strict=True):
        path.chmod(0o600)
        path.write_bytes(text)
    ForkObjects(bytes(tmp_path / "kept")).take([bytes(store)], most_bytes=0)
    for path, text in zip(small, texts, strict=True):
        assert (tmp_path / "kept" / path.relative_to(store)).read_bytes() == text


def test_a_link_among_them_is_refused(theirs: User, tmp_path: Path) -> None:
    store = theirs.git_dir / "objects"
    path = next(path for path in store.rglob("*") if len(path.name) in (38, 62))
    path.rename(tmp_path / "hidden")
    path.symlink_to(tmp_path / "hidden")
    with pytest.raises(RefusedError) as refused:
        ForkObjects(bytes(tmp_path / "kept")).take([bytes(store)], most_bytes=0)
    assert refused.value.code == fork_objects.OBJECTS
    name = path.parent.name + path.name
    assert not any(line.startswith(name) for line in objects_in(tmp_path / "kept"))


def test_packs_count_against_the_limit(theirs: User, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = theirs.git_dir / "objects"
    monkeypatch.setattr(loose_objects, "_MOST_BYTES", 100)
    with pytest.raises(RefusedError) as refused:
        ForkObjects(bytes(tmp_path / "few")).take([bytes(store)], most_bytes=20_000)
    assert refused.value.code == fork_objects.OBJECTS
    with pytest.raises(RefusedError):
        ForkObjects(bytes(tmp_path / "without")).take([bytes(store)], most_bytes=1_000_000)
    ForkObjects(bytes(tmp_path / "kept")).take([bytes(store)], most_bytes=4_000_000)
    assert len(list((tmp_path / "kept/pack").glob("*.pack"))) > 2
    assert objects_in(tmp_path / "kept") == objects_in(store)
