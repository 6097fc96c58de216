"""What the codecs cost and gain on real files, and what writing and reading them as blobs takes.

    python benchmarks/blobs.py DIR... [--files 10000] [--rounds 5]

Medians, in one process, with a warm cache; the store is made below the current directory and removed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import zstandard
from lz4 import block

from holdfast.model.entries import file_entry
from holdfast.model.ids import hash_bytes
from holdfast.store.blobs.content_reader import BlobReader
from holdfast.store.blobs.content_writer import BlobWriter, WrittenBlobs
from holdfast.store.blobs.damage_check import check_pack
from holdfast.store.catalog_records import BlobLocation
from holdfast.store.objects.configured_store import open_objects
from holdfast.store.objects.object_store import ObjectStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.model.ids import Hash


def contents(roots: list[str], most: int) -> list[bytes]:
    found: dict[bytes, None] = {}
    for root in roots:
        for path in sorted(Path(root).rglob("*")):
            if len(found) < most and path.is_file() and not path.is_symlink() and 0 < path.stat().st_size <= 1 << 18:
                found[path.read_bytes()] = None
    return list(found)


def measure(rounds: int, work: Callable[[], object]) -> float:
    times: list[float] = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def codecs(files: list[bytes], rounds: int) -> None:
    total = sum(map(len, files))
    tries: dict[str, Callable[[bytes], bytes]] = {"lz4": lambda data: block.compress(data, store_size=False)}
    for level in (-3, -1, 1, 2, 3):
        tries[f"zstd {level}"] = zstandard.ZstdCompressor(level=level).compress
    for name, compress in tries.items():
        stored = sum(len(compress(data)) for data in files)
        took = measure(rounds, lambda compress=compress: [compress(data) for data in files])
        print(f"{name:8}  {total / stored:5.2f} x  {total / took / 1e6:6.0f} MB/s")
    took = measure(rounds, lambda: [hash_bytes(data) for data in files])
    print(f"{'blake3':8}           {total / took / 1e6:6.0f} MB/s")


def write(objects: ObjectStore, files: list[bytes]) -> WrittenBlobs:
    writer = BlobWriter(objects, "t", lambda _: set(), lambda _: None, os.urandom, generation_of=lambda _: 0)
    for data in files:
        writer.add(data)
    return writer.finish()


def blobs(files: list[bytes], rounds: int) -> None:
    directory = tempfile.mkdtemp(dir=".")
    try:
        objects = open_objects(directory)
        took = measure(rounds, lambda: write(objects, files))
        written = write(objects, files)
        print(f"write, sync   {took * 1000:7.1f} ms, {written.stored_bytes} bytes in {len(written.packs)} packs")
        keys = {pack.id: pack.key for pack in written.packs}
        rows: dict[Hash, BlobLocation] = {
            blob.hash: BlobLocation(keys[blob.pack], blob.offset, blob.length, blob.codec, blob.size, blob.base)
            for blob in written.blobs
            if blob.pack is not None
        }
        reader = BlobReader(objects, lambda hashes: {name: rows[name] for name in hashes if name in rows})
        entries = [file_entry(name, row.size, 0o644) for name, row in rows.items()]
        print(f"fetch         {measure(rounds, lambda: sum(1 for _ in reader.fetch(entries))) * 1000:7.1f} ms")
        print(f"read_many     {measure(rounds, lambda: reader.read_many(rows)) * 1000:7.1f} ms")
        checked = measure(rounds, lambda: [list(check_pack(objects, key, reader.read)) for key in keys.values()])
        print(f"check         {checked * 1000:7.1f} ms")

        def edit() -> WrittenBlobs:
            writer = BlobWriter(objects, "t", lambda _: set(), reader.read_bases, os.urandom, generation_of=lambda _: 0)
            for data in files[:100]:
                writer.add(data[: len(data) // 2] + b"a few words" + data[len(data) // 2 :], hash_bytes(data))
            return writer.finish()

        took = measure(rounds, edit)
        print(f"100 edits     {took * 1000:7.1f} ms, {edit().stored_bytes} bytes")
    finally:
        shutil.rmtree(directory)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("roots", nargs="+", metavar="DIR")
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    files = contents(arguments.roots, arguments.files)
    print(f"{len(files)} different files, {sum(map(len, files))} bytes")
    codecs(files, arguments.rounds)
    blobs(files, arguments.rounds)


if __name__ == "__main__":
    main()
