"""Features that a device and its driver agree upon (virtio 1.1, section 6), and the status that a driver reports."""

from __future__ import annotations

from enum import IntFlag
from typing import Final


class Feature(IntFlag):
    """Features independent of the kind of device."""

    INDIRECT_DESC = 1 << 28
    """A descriptor may refer to a table of others, elsewhere in memory: long chains fit in a short ring."""
    EVENT_IDX = 1 << 29
    """Each side gives an index for its next notification, in place of a flag to turn them off."""
    VERSION_1 = 1 << 32
    """Virtio 1: little-endian, and without the layouts of earlier drafts."""


STATUS_RESET: Final = 0
"""The driver begins anew: nothing that was agreed upon holds any more."""
