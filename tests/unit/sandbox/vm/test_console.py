"""What a guest may write to its console."""

from __future__ import annotations

from pathlib import Path

from holdfast.sandbox.vm.console import FILE_BYTES, TAIL_BYTES, Console, harmless_lines


def test_lines_have_no_commands_for_a_terminal() -> None:
    data = b"\x1b]0;title\x07one\x1b[31;1m red\x1b[0m\r\n\r\n\x1b(Btwo\x08\x9b2J\x00\xff\x1b[\n\xe2\x80\xaethree\n   \n"
    assert harmless_lines(data) == ["one red", "two \ufffd2J \ufffd", "three"]
    assert len(harmless_lines(b"x" * 10_000)[0]) == 500


def test_the_log_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "console.log").write_text("of an earlier machine")
    console = Console(bytes(tmp_path))
    assert (tmp_path / "console.log.old").read_text() == "of an earlier machine"
    assert (tmp_path / "console.log").stat().st_mode & 0o777 == 0o600
    line = b"y" * 99 + b"\n"
    for _ in range(3 * FILE_BYTES // (1000 * len(line))):
        console.add(line * 1000)
    console.add(b"the end\n")
    assert console.tail(2).split("\n") == ["y" * 99, "the end"]
    console.close()
    assert console.tail(1) == "the end"
    assert (tmp_path / "console.log").read_bytes().endswith(b"the end\n")
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(sizes) == 2
    assert max(sizes) < FILE_BYTES + 2 * TAIL_BYTES + 100_000
