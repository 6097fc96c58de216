"""The contract of `ObjectStore`: subclass `ObjectStoreContract` and give it a fixture named ``objects``."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from holdfast.model.content import CHUNK_BYTES
from holdfast.model.errors import IntegrityError, NotFoundError, StorageError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.store.objects.object_store import ObjectStore

BAD_KEYS = (
    "", "/", "/a", "a/", "a//b", ".", "..", "a/..", "../a", "a/../b", ".a", "a/.b", "a\0b", "a b", "a\\b", "a\n", "ä",
    "tmp", "tmp/a", "a" * 256, "/".join("a" * 300),
)  # fmt: skip
FOREVER = 1 << 62


class ObjectStoreContract:
    """The suite. The fixture ``objects`` gives an empty store."""

    def test_what_was_put_can_be_read_in_every_way(self, objects: ObjectStore) -> None:
        objects.put("packs/t/a", [b"hello", b"", b" world"])
        assert objects.get("packs/t/a") == b"hello world"
        assert objects.get("packs/t/a", 6) == b"world"
        assert objects.get("packs/t/a", 4, 3) == b"o w"
        assert objects.get("packs/t/a", 11) == b""
        assert objects.get("packs/t/a", 3, 0) == b""
        assert b"".join(objects.stream("packs/t/a")) == b"hello world"
        assert objects.size("packs/t/a") == 11

    def test_an_empty_object_is_an_object(self, objects: ObjectStore) -> None:
        objects.put("a", [])
        assert objects.get("a") == b""
        assert list(objects.stream("a")) in ([], [b""])
        assert objects.size("a") == 0
        assert [info.key for info in objects.list("")] == ["a"]

    def test_a_range_that_is_not_there_is_damage(self, objects: ObjectStore) -> None:
        objects.put("a", [b"12345"])
        for offset, length in ((0, 6), (5, 1), (6, None), (6, 0), (100, 1), (0, 1 << 60), (1 << 40, 1)):
            with pytest.raises(IntegrityError):
                objects.get("a", offset, length)
        for offset, length in ((-1, 2), (0, -1)):
            with pytest.raises(UsageError):
                objects.get("a", offset, length)

    def test_a_missing_key_is_not_found(self, objects: ObjectStore) -> None:
        objects.put("a/b", [b"x"])
        for key in ("nothing", "a", "a/b/c", "a/c"):
            assert objects.size(key) is None
            for offset, length in ((0, None), (0, 1), (1, 0), (2, None)):
                with pytest.raises(NotFoundError):
                    objects.get(key, offset, length)
            with pytest.raises(NotFoundError):
                list(objects.stream(key))
            objects.delete(key)
        assert objects.get("a/b") == b"x"

    @pytest.mark.parametrize("key", BAD_KEYS)
    def test_a_key_that_could_lead_elsewhere_is_refused(self, objects: ObjectStore, key: str) -> None:
        """I7."""
        with pytest.raises(UsageError):
            objects.put(key, [b"x"])
        upload = objects.upload()
        upload.write(b"x")
        with pytest.raises(UsageError):
            upload.commit(key)
        with pytest.raises(UsageError):
            objects.get(key)
        with pytest.raises(UsageError):
            list(objects.stream(key))
        with pytest.raises(UsageError):
            objects.size(key)
        with pytest.raises(UsageError):
            objects.delete(key)
        assert list(objects.list("")) == []

    @pytest.mark.parametrize("prefix", ["/", "..", "../", "a/../", "tmp/", "a//", "a b"])
    def test_a_prefix_that_no_key_has_is_refused(self, objects: ObjectStore, prefix: str) -> None:
        with pytest.raises(UsageError):
            list(objects.list(prefix))

    def test_nothing_is_visible_before_commit_or_after_abort(self, objects: ObjectStore) -> None:
        upload = objects.upload()
        upload.write(b"abc")
        assert list(objects.list("")) == []
        upload.abort()
        upload.abort()
        assert list(objects.list("")) == []
        with pytest.raises(StorageError):
            upload.write(b"d")
        with pytest.raises(StorageError):
            upload.commit("a")
        assert objects.size("a") is None

    def test_a_commit_publishes_once(self, objects: ObjectStore) -> None:
        upload = objects.upload()
        for piece in (b"a", bytearray(b"b"), memoryview(b"c")):
            upload.write(piece)
        upload.commit("x/y")
        upload.abort()
        with pytest.raises(StorageError):
            upload.commit("z")
        assert [(info.key, info.size) for info in objects.list("")] == [("x/y", 3)]
        assert objects.get("x/y") == b"abc"

    def test_a_commit_replaces(self, objects: ObjectStore) -> None:
        objects.put("a", [b"old and long"])
        objects.put("a", [b"new"])
        assert objects.get("a") == b"new"

    def test_a_put_whose_parts_fail_leaves_nothing(self, objects: ObjectStore) -> None:
        def parts() -> Iterator[bytes]:
            yield b"abc"
            raise KeyError("gone")

        with pytest.raises(KeyError):
            objects.put("a", parts())
        assert list(objects.list("")) == []
        assert objects.clean(FOREVER) == 0

    def test_large_objects_come_in_bounded_pieces(self, objects: ObjectStore) -> None:
        data = bytes(range(256)) * (9 << 12) + b"end"
        objects.put("big", [data[: 5 << 20], data[5 << 20 :]])
        pieces = list(objects.stream("big"))
        assert max(map(len, pieces)) <= CHUNK_BYTES
        assert b"".join(pieces) == data
        assert objects.get("big", len(data) - 5, 5) == data[-5:]

    def test_list_matches_any_beginning_of_a_key(self, objects: ObjectStore) -> None:
        keys = ["packs/t/aa", "packs/t/ab", "packs/t2/aa", "blobs/t/aa/bb/aabb", "blobs/t/aa/bb/aabb.1"]
        for key in keys:
            objects.put(key, [key.encode()])
        prefixes = [
            "",
            "p",
            "packs",
            "packs/",
            "packs/t",
            "packs/t/",
            "packs/t/a",
            "packs/t/ab",
            "x/",
            keys[3],
            "packs/x",
        ]
        for prefix in prefixes:
            found = {info.key: info for info in objects.list(prefix)}
            assert sorted(found) == sorted(key for key in keys if key.startswith(prefix)), prefix
            assert all(info.size == len(key) and info.modified_at > 0 for key, info in found.items())

    def test_deleting_while_listing_is_safe(self, objects: ObjectStore) -> None:
        for at in range(20):
            objects.put(f"a/{at}", [b"x"])
        for info in objects.list("a/"):
            objects.delete(info.key)
        assert list(objects.list("")) == []

    def test_clean_takes_no_object(self, objects: ObjectStore) -> None:
        objects.put("a", [b"x"])
        objects.clean(FOREVER)
        assert objects.get("a") == b"x"

    def test_of_eight_racing_writers_one_wins_whole(self, objects: ObjectStore) -> None:
        """Case 7."""
        failures: list[BaseException] = []

        def write(number: int) -> None:
            try:
                for at in range(5):
                    objects.put(f"blobs/{at}", [b"%04d" % number] * 100)
            except BaseException as error:  # noqa: BLE001 - handed to the test's own thread
                failures.append(error)

        threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert {info.key for info in objects.list("")} == {f"blobs/{at}" for at in range(5)}
        whole = {b"%04d" % number * 100 for number in range(8)}
        assert {objects.get(f"blobs/{at}") for at in range(5)} <= whole
