"""The table of mounts, and on which mounts changes happen that this kernel does not see."""

from __future__ import annotations

from holdfast.files.linux.mount_table import Mount, mounts, parse_mounts


def test_the_table_is_parsed() -> None:
    text = (
        b"22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
        b"30 22 0:26 /a\\011b /mnt/a\\040b\\134c rw - nfs4 host:/x\\040y rw\n"
        b"31 22 0:27 / /home/u/s3 rw master:2 - fuse.s3fs s3fs rw\n"
        b"garbage\n"
    )
    found = parse_mounts(text)
    assert found == [
        Mount(22, b"254:0", b"/", b"/", b"ext4", b"/dev/vda"),
        Mount(30, b"0:26", b"/a\tb", b"/mnt/a b\\c", b"nfs4", b"host:/x y"),
        Mount(31, b"0:27", b"/", b"/home/u/s3", b"fuse.s3fs", b"s3fs"),
    ]
    assert [mount.remote for mount in found] == [False, True, True]


def test_the_root_of_this_process_is_in_it() -> None:
    assert b"/" in [mount.point for mount in mounts()]
