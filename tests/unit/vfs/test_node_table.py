"""What is kept for a kernel that counts as it likes. (Cases 9 and 12.)"""

from __future__ import annotations

import errno
from threading import Thread

import pytest

from holdfast.vfs.file_system import TooManyError
from holdfast.vfs.node_table import Handles, Nodes


def table(most: int = 10) -> Nodes[str]:
    return Nodes("/", "root", most)


def test_one_node_for_one_key_until_the_last_lookup_is_given_back() -> None:
    nodes = table()
    a = nodes.enter("a", lambda: "A")
    assert nodes.enter("a", lambda: "never made") == a
    assert nodes[a] == "A"
    assert nodes.forget(a, 1) == (None, 0)
    assert nodes.forget(a, 1) == ("A", 0)
    with pytest.raises(OSError, match=rf"\[Errno {errno.ESTALE}\]"):
        nodes[a]
    again = nodes.enter("a", lambda: "another A")
    assert again != a
    assert nodes[again] == "another A"


@pytest.mark.parametrize("count", [2, 1 << 32, (1 << 64) - 1])
def test_more_than_was_given_is_told_and_harms_nobody(count: int) -> None:
    nodes = table()
    a, b = nodes.enter("a", lambda: "A"), nodes.enter("b", lambda: "B")
    assert nodes.forget(a, count) == ("A", count - 1)
    assert nodes.forget(a, count) == (None, count)
    assert nodes.forget(999, count) == (None, count)
    assert nodes.forget(0, count) == (None, count)
    assert nodes[b] == "B"
    assert len(nodes) == 2


def test_nothing_given_back_is_nothing() -> None:
    nodes = table()
    a = nodes.enter("a", lambda: "A")
    assert nodes.forget(a, 0) == (None, 0)
    assert nodes[a] == "A"


def test_the_root_stays() -> None:
    nodes = table()
    assert nodes.enter("/", lambda: "never made") == 1
    assert nodes.forget(1, 5) == (None, 4)
    assert nodes[1] == "root"


def test_there_is_a_limit() -> None:
    nodes = table(3)
    a = nodes.enter("a", lambda: "A")
    nodes.enter("b", lambda: "B")
    made: list[str] = []
    with pytest.raises(TooManyError) as refused:
        nodes.enter("c", lambda: made.append("c") or "C")
    assert refused.value.errno == errno.ENFILE
    assert made == []
    assert nodes.enter("a", lambda: "never made") == a
    nodes.forget(a, 2)
    nodes.enter("c", lambda: "C")


def test_what_could_not_be_made_is_not_there() -> None:
    nodes = table()
    with pytest.raises(ZeroDivisionError):
        nodes.enter("a", lambda: str(1 / 0))
    assert len(nodes) == 1
    assert nodes[nodes.enter("a", lambda: "A")] == "A"


def test_a_key_that_comes_to_mean_something_else() -> None:
    nodes = table()
    old = nodes.enter("inode 5", lambda: "removed")
    nodes.renew(old)
    nodes.renew(old)
    new = nodes.enter("inode 5", lambda: "made after")
    assert (nodes[old], nodes[new]) == ("removed", "made after")
    assert nodes.forget(old, 1) == ("removed", 0)
    assert nodes.enter("inode 5", lambda: "never made") == new
    nodes.renew(1)
    assert nodes.enter("/", lambda: "never made") == 1
    nodes.renew(999)


def test_the_end_of_a_session() -> None:
    nodes = table()
    a = nodes.enter("a", lambda: "A")
    nodes.enter("/", lambda: "never made")
    assert nodes.clear() == ["A"]
    assert len(nodes) == 1
    assert nodes.forget(1, 1) == (None, 1)
    assert nodes.enter("a", lambda: "A again") > a


def test_a_handle_is_good_with_its_node_alone() -> None:
    handles: Handles[str] = Handles(10)
    first = handles.add(5, "file")
    assert handles.get(first, 5) == "file"
    for handle, node in ((first, 6), (first + 1, 5), (0, 5), ((1 << 64) - 1, 5)):
        for use in (handles.get, handles.release):
            with pytest.raises(OSError, match=rf"\[Errno {errno.EBADF}\]"):
                use(handle, node)
    assert handles.release(first, 5) == "file"
    with pytest.raises(OSError, match=rf"\[Errno {errno.EBADF}\]"):
        handles.release(first, 5)
    assert handles.add(5, "file") != first


def test_a_hundred_thousand_opens() -> None:
    handles: Handles[int] = Handles(1000)
    refused = 0
    for number in range(100_000):
        try:
            handles.add(2, number)
        except TooManyError:
            refused += 1
    assert (refused, len(handles)) == (99_000, 1000)
    with pytest.raises(TooManyError):
        handles.check_room()
    assert handles.clear() == [*range(1000)]
    handles.check_room()


def test_many_threads_count_together() -> None:
    nodes = table(1000)
    gone: list[str] = []

    def work() -> None:
        for number in range(300):
            node = nodes.enter(number % 7, lambda: "kept")
            found = nodes.forget(node, 1)
            assert found.excess == 0
            if found.gone:
                gone.append(found.gone)

    threads = [Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(nodes) == 1
    assert len(gone) >= 7
