"""Blobs: content into packs and large objects, and back out, verified. What the rest of the house imports."""

from holdfast.store.blob_check import Damage, check_large, check_pack
from holdfast.store.blob_reader import BlobReader
from holdfast.store.blob_writer import BlobWriter, Written, write_pages

__all__ = ["BlobReader", "BlobWriter", "Damage", "Written", "check_large", "check_pack", "write_pages"]
