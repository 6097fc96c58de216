"""I4: when a writer of blobs has finished, all that it wrote survives a power loss."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from holdfast.model.content import SMALL_BLOB_BYTES
from holdfast.model.ids import CheckpointId, Hash, PackId, hash_bytes
from holdfast.store.blobs.content_writer import BlobWriter, WrittenBlobs, write_pages
from holdfast.store.blobs.damage_check import check_large, check_pack
from holdfast.store.catalog_records import large_blob_key, pages_key
from holdfast.store.objects._local_store import LocalObjects
from holdfast.testing.powerloss import RecordingDisk

if TYPE_CHECKING:
    from pathlib import Path


def keys_of(written: WrittenBlobs) -> set[str]:
    keys = {pack.key for pack in written.packs}
    return keys | {large_blob_key("t", blob.hash, blob.generation) for blob in written.blobs if blob.pack is None}


def no_base(name: Hash) -> bytes:
    raise AssertionError(f"nothing here is a delta: {name.hex()}")


def test_what_a_writer_finished_survives_every_power_loss(tmp_path: Path) -> None:
    root = tmp_path / "real"
    root.mkdir()
    disk = RecordingDisk(str(root))
    objects = LocalObjects(str(root), disk=disk)
    generator = random.Random(1)
    promises: list[tuple[set[str], int]] = []
    for number in range(3):
        writer = BlobWriter(
            objects,
            "t",
            lambda _: set(),
            lambda _: {},
            generator.randbytes,
            generation_of=lambda _: 0,
            pack_bytes=20_000,
        )
        for _ in range(10):
            writer.add(generator.randbytes(5000))
        if number == 1:
            writer.add_stream([generator.randbytes(1000) + bytes(SMALL_BLOB_BYTES)])
        promises.append((keys_of(writer.finish()), len(disk)))
        key = pages_key("t", CheckpointId(f"{number:024x}"))
        page = generator.randbytes(300)
        written = write_pages(objects, key, PackId(f"{number:032x}"), [(hash_bytes(page), page, None)], lambda _: {})
        promises.append((keys_of(written), len(disk)))
    kept = {steps for _, steps in promises}
    checked = 0
    for at in range(len(disk) + 1):
        promised = {key for keys, steps in promises if steps <= at for key in keys}
        for state in disk.states(at, limit=4, seed=2):
            assert promised <= state.files.keys()
            visible = {path for path in state.files if not path.startswith("tmp/")}
            if at % 7 and at not in kept:
                continue
            target = tmp_path / f"state-{checked}"
            state.write_to(str(target))
            after = LocalObjects(str(target))
            assert {info.key for info in after.list("")} == visible
            for key in visible:
                if key.startswith("blobs/"):
                    assert check_large(after, key, Hash(bytes.fromhex(key[-32:]))) is None
                else:
                    assert list(check_pack(after, key, no_base)) == []
            checked += 1
    assert checked > 5
