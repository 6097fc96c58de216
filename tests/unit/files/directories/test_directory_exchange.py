"""Directories that are known again by what they are."""

from __future__ import annotations

from holdfast.files.directories.directory_exchange import DirectoryIdentity, is_same_directory


def test_a_directory_is_known_after_its_file_system_was_mounted_again() -> None:
    """A device has another number then."""
    assert is_same_directory(DirectoryIdentity(45, 256, 262), DirectoryIdentity(40, 256, 262))
    assert not is_same_directory(DirectoryIdentity(45, 256, 262), DirectoryIdentity(45, 256, 263))
    assert not is_same_directory(DirectoryIdentity(45, 256, None), DirectoryIdentity(40, 256, None)), (
        "nothing but the number tells"
    )
    assert is_same_directory(None, None)
    assert not is_same_directory(None, DirectoryIdentity(45, 256, 262))
