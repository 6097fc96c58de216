"""Renaming to a name that must be free, on every file system."""

from __future__ import annotations

import errno
import os

from holdfast.files.linux import syscalls

LACKS_FLAGS = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
"""How a file system without the flags of renameat2(2) refuses them: many of those over FUSE, and over a network."""
LACKS_FLAGS_OR_LINKS = LACKS_FLAGS | {errno.EPERM}


def rename_to_free(src_fd: int, src: bytes, dst_fd: int, dst: bytes) -> None:
    """Rename; `FileExistsError` if ``dst`` exists. Raises `OSError`.

    Where the file system lacks the flag for that, this is checked just before the rename: an entry made by another
    process in between is replaced, unless it is a non-empty directory. (A hard link would not replace it. But it may be
    another object to such file systems, some of which distinguish names and not files, and a killed process would leave
    both names.)
    """
    try:
        syscalls.renameat2(src_fd, src, dst_fd, dst, syscalls.RENAME_NOREPLACE)
        return
    except OSError as error:
        if error.errno not in LACKS_FLAGS:
            raise
    if os.access(dst, os.F_OK, dir_fd=dst_fd, follow_symlinks=False):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    os.rename(src, dst, src_dir_fd=src_fd, dst_dir_fd=dst_fd)


def move_if_absent(src_fd: int, src: bytes, dst_fd: int, dst: bytes, *, flags: bool = True) -> bool:
    """Rename, or return False if ``dst`` exists, which is then as it was. ``flags=False`` does without renameat2(2)."""
    if flags:
        try:
            syscalls.renameat2(src_fd, src, dst_fd, dst, syscalls.RENAME_NOREPLACE)
            return True
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in LACKS_FLAGS_OR_LINKS:
                raise
    try:
        # A hard link is the one other way to take a name only if it is free.
        os.link(src, dst, src_dir_fd=src_fd, dst_dir_fd=dst_fd, follow_symlinks=False)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in LACKS_FLAGS_OR_LINKS and error.errno != errno.EMLINK:
            raise
    else:
        os.unlink(src, dir_fd=src_fd)
        return True
    # A directory (which replaces only an empty directory), or a file system without hard links.
    if exists(dst_fd, dst):
        return False
    os.rename(src, dst, src_dir_fd=src_fd, dst_dir_fd=dst_fd)
    return True


def exists(dir_fd: int, name: bytes) -> bool:
    """True if the directory has an entry of that name."""
    try:
        os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True
