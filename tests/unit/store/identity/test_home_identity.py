from __future__ import annotations

import os
import threading

import pytest

from holdfast.model.errors import IntegrityError
from holdfast.store.identity.home_identity import NAME, identify


def test_a_home_has_one_number_for_ever(tmp_path):
    home = os.fsencode(tmp_path)
    number, writable = identify(home, os.urandom)
    assert writable
    assert len(number) == 32
    assert identify(home, os.urandom) == (number, True)
    assert os.listdir(home) == [NAME]
    assert (tmp_path / "machine.id").stat().st_mode & 0o777 == 0o600


def test_two_that_begin_at_once_agree(tmp_path):
    home = os.fsencode(tmp_path)
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(identify(home, os.urandom)[0])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert len(found) == 8
    assert os.listdir(home) == [NAME]


@pytest.mark.parametrize("content", [b"", b"x" * 32 + b"\n", b"0" * 31 + b"\n", b"0" * 32, b"0" * 33 + b"\n"])
def test_a_damaged_number_is_not_replaced(tmp_path, content):
    (tmp_path / "machine.id").write_bytes(content)
    with pytest.raises(IntegrityError) as damaged:
        identify(os.fsencode(tmp_path), os.urandom)
    assert "machine.id" in damaged.value.message
    assert (tmp_path / "machine.id").read_bytes() == content


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").write_bytes(b"0" * 32 + b"\n")
    (tmp_path / "machine.id").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Exception, match=r"machine\.id"):
        identify(os.fsencode(tmp_path), os.urandom)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_who_may_not_write_the_home_is_told_so(tmp_path):
    number, _ = identify(os.fsencode(tmp_path), os.urandom)
    (tmp_path / "machine.id").chmod(0o644)
    read, write = os.pipe()
    os.chmod(tmp_path, 0o755)
    folder = os.open(tmp_path, os.O_RDONLY)
    child = os.fork()
    if not child:
        os.fchdir(folder)
        os.setuid(65534)
        try:
            os.write(write, repr(identify(b".", os.urandom)).encode())
        finally:
            os._exit(0)
    os.close(folder)
    os.close(write)
    os.waitpid(child, 0)
    assert os.read(read, 200).decode() == repr((number, False))
    os.close(read)
