"""What mounting needs, for whoever cannot."""

from __future__ import annotations

from typing import Final

MOUNTING_NEEDS: Final = (
    "mounting needs /dev/fuse, and root or fusermount3 (the package fuse3); in a container also "
    "`--device /dev/fuse --cap-add SYS_ADMIN`"
)
