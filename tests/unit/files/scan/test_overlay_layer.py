"""What is remembered of an overlay's upper layer between two scans: only what surely goes with the index."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from holdfast.files.ignore.rules import IgnoreSources
from holdfast.files.index.stat_index import StatIndex
from holdfast.files.scan.overlay_layer import UpperLayer
from holdfast.model.entries import Entry
from holdfast.model.ids import Hash


class Nothing:
    """A lower layer that is empty."""

    root = Hash(b"r" * 16)
    changed_ns = 0

    def entries(self, path: bytes) -> Iterable[tuple[bytes, Entry, int]]:
        del path
        return ()

    def entry(self, path: bytes) -> Entry | None:
        del path

    def read(self, path: bytes, limit: int) -> bytes | None:
        del path, limit
        return None


class Bench:
    def __init__(self, base: Path) -> None:
        self.upper, self.state, self.index = base / "upper", base / "layer", base / "index"
        (self.upper / "changed").mkdir(parents=True)
        self.index.write_bytes(bytes(range(100)))
        layer = self.layer()
        index = StatIndex()
        assert layer.prepare(index, IgnoreSources(os.fsencode(base)).outer(), lambda _: pytest.fail("nothing moved"))
        layer.settle()
        layer.save(os.fsencode(self.index))

    def layer(self) -> UpperLayer:
        return UpperLayer(os.fsencode(self.upper), "user", Nothing(), os.fsencode(self.state))

    def is_known(self) -> bool:
        """Whether a scan would leave anything out."""
        layer = self.layer()
        layer.load(os.fsencode(self.index))
        return layer.unchanged(StatIndex()) is not None


@pytest.fixture(name="bench")
def _bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_what_was_saved_is_known(bench: Bench) -> None:
    assert bench.is_known()
    assert os.stat(bench.state).st_mode & 0o777 == 0o600


def test_it_goes_with_one_index(bench: Bench) -> None:
    bench.index.write_bytes(b"another one, that was written by somebody else")
    assert not bench.is_known()
    bench.index.unlink()
    assert not bench.is_known()
    bench.index.write_bytes(b"short")
    assert not bench.is_known()


def test_a_damaged_note_is_left_out_and_said(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """I12."""
    whole = bench.state.read_bytes()
    for at in range(len(whole)):
        bench.state.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        caplog.clear()
        assert not bench.is_known()
        assert "all of the upper layer is looked at" in caplog.text
        bench.state.write_bytes(whole[:at])
        assert not bench.is_known()
    caplog.clear()
