"""Every object store keeps the contract."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, cast

import pytest

import holdfast
from holdfast.store.objects._local_store import LocalObjects
from holdfast.store.objects.object_store import put_parts
from holdfast.store.objects.remote_store import open_bucket
from holdfast.testing.object_store_contract import ObjectStoreContract

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from holdfast.store.objects.object_store import ObjectStore, Upload


class TestLocalObjects(ObjectStoreContract):
    @pytest.fixture
    def objects(self, tmp_path: Path) -> ObjectStore:
        return LocalObjects(str(tmp_path / "home" / "objects"))


class TestRemoteObjectsInMemory(ObjectStoreContract):
    @pytest.fixture
    def objects(self) -> ObjectStore:
        return open_bucket("memory://")


class Unconditional:
    """A bucket that knows no conditions: whoever commits a key last has it. Remembers what was committed."""

    def __init__(self) -> None:
        self._bucket = open_bucket("memory://")
        self.committed: dict[str, list[bytes]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bucket, name)

    def upload(self) -> Upload:
        """See `ObjectStore.upload`."""
        return _Remembered(self._bucket.upload(), self.committed)

    def put(self, key: str, parts: Iterable[bytes]) -> None:
        """See `ObjectStore.put`."""
        put_parts(cast("ObjectStore", self), key, parts)


class _Remembered:
    def __init__(self, upload: Upload, committed: dict[str, list[bytes]]) -> None:
        self._upload = upload
        self._committed = committed
        self._data = bytearray()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._data += data
        self._upload.write(data)

    def commit(self, key: str) -> None:
        self._upload.commit(key)
        self._committed.setdefault(key, []).append(bytes(self._data))

    def abort(self) -> None:
        self._upload.abort()


def test_case_7_nothing_relies_on_conditional_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight savers race: a key is either one writer's own, or names the bytes that every one of them writes."""
    bucket = Unconditional()
    monkeypatch.setattr("holdfast.store.store.open_objects", lambda *_, **__: bucket)
    large = os.urandom(5 << 20)
    for number in range(8):
        tree = tmp_path / str(number)
        tree.mkdir()
        (tree / "large").write_bytes(large)
        for at in range(20):
            (tree / f"shared {at}").write_bytes(b"%d\n" % at * 1000)
            (tree / f"own {at}").write_bytes(b"%d of %d\n" % (at, number) * 1000)
    start = threading.Barrier(8)

    def save(number: int) -> str:
        with holdfast.init(tmp_path / str(number), home=tmp_path / "home") as workspace:
            start.wait(60)
            return workspace.checkpoint().checkpoint.id

    with ThreadPoolExecutor(8) as pool:
        saved = list(pool.map(save, range(8)))
    again = [key for key, contents in bucket.committed.items() if len(contents) > 1]
    assert all(key.startswith("blobs/") for key in again)
    assert all(len(set(bucket.committed[key])) == 1 for key in again)
    for number, name in enumerate(saved):
        with holdfast.open(tmp_path / str(number), home=tmp_path / "home") as workspace:
            assert b"".join(workspace.cat(name, "large")) == large
            assert b"".join(workspace.cat(name, "own 7")) == b"7 of %d\n" % number * 1000
            assert number or workspace.verify(read_data=True).ok
