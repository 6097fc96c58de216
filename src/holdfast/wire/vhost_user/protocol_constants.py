"""The numbers of vhost-user, as QEMU's docs/interop/vhost-user.rst has them. All are in the host's byte order."""

from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import Final

VERSION: Final = 1
VERSION_MASK: Final = 3
FLAG_REPLY: Final = 1 << 2
FLAG_NEED_REPLY: Final = 1 << 3

PROTOCOL_FEATURES: Final = 1 << 30
"""Not of virtio: among its features, this one says that there are features of the protocol."""

NO_DESCRIPTOR: Final = 1 << 8
"""With the index of a vring: no event descriptor comes with the message."""
VRING_MASK: Final = 0xFF

MAX_VRINGS: Final = 256
MAX_CONFIG_BYTES: Final = 256
MAX_REGIONS: Final = 32
"""Limit of regions of guest memory, in all and in one table; QEMU sends no more than 8 in one message."""
MAX_DESCRIPTORS: Final = MAX_REGIONS
"""Limit of descriptors with one message: for receiving ancillary data."""
MAX_PAYLOAD_BYTES: Final = 4096


class Request(IntEnum):
    """The requests of a front end."""

    GET_FEATURES = 1
    SET_FEATURES = 2
    SET_OWNER = 3
    RESET_OWNER = 4
    SET_MEM_TABLE = 5
    SET_LOG_BASE = 6
    SET_LOG_FD = 7
    SET_VRING_NUM = 8
    SET_VRING_ADDR = 9
    SET_VRING_BASE = 10
    GET_VRING_BASE = 11
    SET_VRING_KICK = 12
    SET_VRING_CALL = 13
    SET_VRING_ERR = 14
    GET_PROTOCOL_FEATURES = 15
    SET_PROTOCOL_FEATURES = 16
    GET_QUEUE_NUM = 17
    SET_VRING_ENABLE = 18
    SEND_RARP = 19
    NET_SET_MTU = 20
    SET_BACKEND_REQ_FD = 21
    IOTLB_MSG = 22
    SET_VRING_ENDIAN = 23
    GET_CONFIG = 24
    SET_CONFIG = 25
    CREATE_CRYPTO_SESSION = 26
    CLOSE_CRYPTO_SESSION = 27
    POSTCOPY_ADVISE = 28
    POSTCOPY_LISTEN = 29
    POSTCOPY_END = 30
    GET_INFLIGHT_FD = 31
    SET_INFLIGHT_FD = 32
    GPU_SET_SOCKET = 33
    RESET_DEVICE = 34
    VRING_KICK = 35
    GET_MAX_MEM_SLOTS = 36
    ADD_MEM_REG = 37
    REM_MEM_REG = 38
    SET_STATUS = 39
    GET_STATUS = 40
    GET_SHARED_OBJECT = 41
    SET_DEVICE_STATE_FD = 42
    CHECK_DEVICE_STATE = 43
    GET_SHMEM_CONFIG = 44


class ProtocolFeature(IntFlag):
    """Features that the two ends of the socket agree upon: all that a front end of virtio-fs may use."""

    MQ = 1 << 0
    """GET_QUEUE_NUM."""
    LOG_SHMFD = 1 << 1
    REPLY_ACK = 1 << 3
    """A request can ask to be acknowledged."""
    BACKEND_REQ = 1 << 5
    CONFIG = 1 << 9
    """GET_CONFIG, SET_CONFIG."""
    INFLIGHT_SHMFD = 1 << 12
    RESET_DEVICE = 1 << 13
    INBAND_NOTIFICATIONS = 1 << 14
    CONFIGURE_MEM_SLOTS = 1 << 15
    """Regions of memory come and go one by one."""
    STATUS = 1 << 16
    """SET_STATUS, GET_STATUS: the driver's status."""
