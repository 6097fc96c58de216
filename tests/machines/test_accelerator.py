"""Whether KVM is of use here: tried once, and kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.sandbox.images.manifest import Image
from holdfast.sandbox.vm import accelerator
from holdfast.sandbox.vm.accelerator import choose_accelerator

from ..e2e.isolated import need_namespaces
from .test_run_in_machine import Bench

pytestmark = pytest.mark.slow


def test_without_the_device_a_machine_is_emulated(tmp_path: Path) -> None:
    image = Image("default", "x", b"", b"", b"", None)  # type: ignore[arg-type]
    missing = tmp_path / "kvm"
    found = choose_accelerator(bytes(tmp_path), image, device=str(missing))
    assert (found.kind, found.note) == (
        "tcg", f"virtual machines are emulated here, several times slower: there is no {missing}"
    )  # fmt: skip
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not os.access("/dev/kvm", os.R_OK | os.W_OK), reason="needs /dev/kvm, of use or not")
def test_it_is_tried_once_for_each_image_and_kept(built_image: Image, tmp_path: Path) -> None:
    need_namespaces()
    home, note = bytes(tmp_path), tmp_path / "accelerator"
    # (No kernel is up so soon.)
    found = choose_accelerator(home, built_image, limit=0.05)
    assert found.kind == "tcg"
    assert found.note.endswith("no guest comes up under /dev/kvm within 0 seconds")
    kept = note.read_bytes()
    assert note.stat().st_mode & 0o777 == 0o600
    assert b'"works":false' in kept

    # What was kept is believed: nothing is tried.
    accelerator._NOTE.write(home, kept.partition(b"\n")[2].replace(b'"works":false', b'"works":true'))
    assert choose_accelerator(home, built_image, limit=0.05).kind == "kvm"

    # It is not, for another image, or if it is damaged.
    assert choose_accelerator(home, built_image._replace(id="other"), limit=0.05).kind == "tcg"
    assert b'"image":"other"' in note.read_bytes()
    note.write_bytes(kept[:-3])
    assert choose_accelerator(home, built_image, limit=0.05).kind == "tcg"
    assert note.read_bytes() == kept


@pytest.mark.skipif(not os.access("/dev/kvm", os.R_OK | os.W_OK), reason="needs /dev/kvm, of use or not")
def test_what_is_found_holds(built_image: Image, tmp_path: Path) -> None:
    need_namespaces()
    first = choose_accelerator(bytes(tmp_path), built_image)
    assert first == choose_accelerator(bytes(tmp_path), built_image, limit=0.0)._replace(note=first.note)


@pytest.mark.skipif(not os.access("/dev/kvm", os.R_OK | os.W_OK), reason="needs /dev/kvm, of use or not")
def test_doctor_says_what_was_found_and_tries_nothing(built_image: Image, tmp_path: Path) -> None:
    need_namespaces()
    bench = Bench(tmp_path, built_image)
    home, note = bytes(bench.home), bench.home / "accelerator"

    def doctor() -> str:
        said = bench.holdfast("doctor").stdout
        return said.partition("\nmachines\n")[2].partition("\nmounting\n")[0]

    assert "  + whether they run with KVM is not tried yet: the first one tries it\n" in doctor()
    assert not note.exists()
    choose_accelerator(home, built_image, limit=0.05)
    kept = note.read_bytes()
    assert (
        "  - virtual machines are emulated here, several times slower: "
        "no guest comes up under /dev/kvm within 5 seconds\n"
        f"      a new start of this host, or `rm {note}`, has it tried again\n"
    ) in doctor()
    accelerator._NOTE.write(home, kept.partition(b"\n")[2].replace(b'"works":false', b'"works":true'))
    assert "  + they run with KVM\n" in doctor()
    # It says nothing of another image.
    (bench.home / "config.toml").write_text('[vm]\nimage = "other"\n')
    assert "is not tried yet" in doctor()
