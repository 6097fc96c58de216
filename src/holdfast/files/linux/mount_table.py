"""The table of mounts that a process sees: proc_pid_mountinfo(5)."""

from __future__ import annotations

from holdfast.model.fast_namedtuple import NamedTuple

_REMOTE = frozenset(b"nfs nfs4 cifs smb3 smbfs 9p ceph afs ncpfs vboxsf lustre gpfs prl_fs".split())
"""File systems that others can change without this kernel's knowledge: it then makes no events."""


class Mount(NamedTuple):
    """A line of the table."""

    id: int
    device: bytes
    root: bytes
    """The directory, or the file, of the file system that is shown there."""
    point: bytes
    type: bytes
    source: bytes
    """The mounted source: a device, or a name whose meaning depends on the file system."""

    @property
    def remote(self) -> bool:
        """True if changes may happen on it that this kernel does not see."""
        return self.type in _REMOTE or self.type.startswith(b"fuse")


def mounts() -> list[Mount]:
    """All mounts that this process sees, in the order in which they were made. Raises `OSError`."""
    with open("/proc/self/mountinfo", "rb") as file:
        return parse_mounts(file.read())


def parse_mounts(text: bytes) -> list[Mount]:
    r"""The mounts in the text of a table, in its order, with ``\040`` and the like undone. Skips other lines."""
    found: list[Mount] = []
    for line in text.splitlines():
        left, _, right = line.partition(b" - ")
        fields = left.split(b" ")
        if len(fields) > 4 and right:
            type_, _, rest = right.partition(b" ")
            source = rest.partition(b" ")[0]
            found.append(Mount(int(fields[0]), fields[2], _plain(fields[3]), _plain(fields[4]), type_, _plain(source)))
    return found


def _plain(escaped: bytes) -> bytes:
    if b"\\" not in escaped:
        return escaped
    import re  # (few tables have escapes, and loading this takes longer than reading a table)

    return re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), escaped)
