"""Directories that are known again by what they are."""

from __future__ import annotations

from holdfast.files.directories.directory_exchange import Place, same_place


def test_a_directory_is_known_after_its_file_system_was_mounted_again() -> None:
    """A device has another number then."""
    assert same_place(Place(45, 256, 262), Place(40, 256, 262))
    assert not same_place(Place(45, 256, 262), Place(45, 256, 263))
    assert not same_place(Place(45, 256, None), Place(40, 256, None)), "nothing but the number tells"
    assert same_place(None, None)
    assert not same_place(None, Place(45, 256, 262))
