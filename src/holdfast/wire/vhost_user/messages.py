"""Decodes requests of a front end, and encodes the replies.

A message is a header of 12 bytes and a payload; file descriptors come beside its first byte. Here a descriptor is only
a number that is passed on.

::

    header = decode_header(data)                                     # wrong: close the connection
    try:
        request = session.receive(header, payload, descriptors)      # decodes, and checks what may be asked when
    except FormatError:
        reply = session.refusal(header)                              # None: close the connection
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from holdfast.model.errors import FormatError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.wire.vhost_user import protocol_constants
from holdfast.wire.vhost_user.protocol_constants import (
    MAX_CONFIG_BYTES,
    MAX_PAYLOAD_BYTES,
    MAX_REGIONS,
    NO_DESCRIPTOR,
    VRING_MASK,
    Request,
)
from holdfast.wire.virtio.guest_memory import check_ranges
from holdfast.wire.virtio.split_queue import check_size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Payload = bytes | bytearray | memoryview
    Decode = Callable[[str, Payload, Sequence[int]], "Body"]

_HEADER: Final = struct.Struct("=III")
HEADER_BYTES: Final = _HEADER.size
_U64: Final = struct.Struct("=Q")
_VRING_STATE: Final = struct.Struct("=II")
_VRING_ADDRESSES: Final = struct.Struct("=IIQQQQ")
_TABLE_HEAD: Final = struct.Struct("=I4x")
_SLOT_HEAD_BYTES: Final = 8
_REGION: Final = struct.Struct("=QQQQ")
_CONFIG: Final = struct.Struct("=III")
_REPLY_U64: Final = struct.Struct("=IIIQ")
_REPLY_VRING_STATE: Final = struct.Struct("=IIIII")
_REPLY_CONFIG: Final = struct.Struct("=IIIIII")

_REPLY_FLAGS: Final = protocol_constants.VERSION | protocol_constants.FLAG_REPLY
_KNOWN_FLAGS: Final = protocol_constants.VERSION_MASK | protocol_constants.FLAG_NEED_REPLY
_FILE_END: Final = 1 << 63
_INDEX_MAX: Final = 0xFFFF
_NAMES: Final = {int(request): request.name for request in Request}


class Header(NamedTuple):
    """The beginning of every message."""

    request: int
    """A `Request`, or one that is newer than those."""
    needs_reply: bool
    """If `ProtocolFeature.REPLY_ACK` was agreed upon, the front end waits to hear whether it has worked."""
    payload_bytes: int


class MemoryRegion(NamedTuple):
    """A region of guest memory: ``size`` bytes from ``mapping_offset`` in the file that comes with it."""

    guest_address: int
    size: int
    user_address: int
    mapping_offset: int


class GetFeatures(NamedTuple):
    """GET_FEATURES."""


class SetFeatures(NamedTuple):
    """SET_FEATURES: those of the device that its driver and the front end want."""

    features: int


class SetOwner(NamedTuple):
    """SET_OWNER: the front end takes the device."""


class ResetOwner(NamedTuple):
    """RESET_OWNER: deprecated; here it stops all vrings."""


class GetProtocolFeatures(NamedTuple):
    """GET_PROTOCOL_FEATURES."""


class SetProtocolFeatures(NamedTuple):
    """SET_PROTOCOL_FEATURES."""

    features: int


class GetQueueNum(NamedTuple):
    """GET_QUEUE_NUM."""


class GetMaxMemSlots(NamedTuple):
    """GET_MAX_MEM_SLOTS."""


class SetMemTable(NamedTuple):
    """SET_MEM_TABLE: all of the guest's memory, in place of what there was; a descriptor for each region.

    Map them, then close them.
    """

    regions: tuple[MemoryRegion, ...]
    descriptors: tuple[int, ...]


class AddMemRegion(NamedTuple):
    """ADD_MEM_REG: one region more. Map it, then close the descriptor."""

    region: MemoryRegion
    descriptor: int


class RemoveMemRegion(NamedTuple):
    """REM_MEM_REG: this region is removed; its offset is ignored. Some front ends send a descriptor."""

    region: MemoryRegion
    descriptor: int | None


class SetVringNum(NamedTuple):
    """SET_VRING_NUM: how many entries a ring has; a power of two up to 32,768."""

    vring: int
    size: int


class SetVringAddresses(NamedTuple):
    """SET_VRING_ADDR: where the parts of a ring are, by user addresses."""

    vring: int
    descriptors: int
    used: int
    available: int


class SetVringBase(NamedTuple):
    """SET_VRING_BASE: the index of the first chain to take."""

    vring: int
    base: int


class GetVringBase(NamedTuple):
    """GET_VRING_BASE: stop this ring; answered with the index of the chain that would be next."""

    vring: int


class SetVringKick(NamedTuple):
    """SET_VRING_KICK: start this ring; the event is signalled when chains become available."""

    vring: int
    descriptor: int


class SetVringCall(NamedTuple):
    """SET_VRING_CALL: the event to signal when chains were used; None if the driver polls.

    Signal it at once: front ends start a ring first, and chains used since were signalled by the event before this one.
    """

    vring: int
    descriptor: int | None


class SetVringError(NamedTuple):
    """SET_VRING_ERR: the event to signal when the ring is broken."""

    vring: int
    descriptor: int | None


class SetVringEnable(NamedTuple):
    """SET_VRING_ENABLE: a ring that is not enabled must not be processed."""

    vring: int
    enabled: bool


class GetConfig(NamedTuple):
    """GET_CONFIG: ``size`` bytes of the configuration space from ``offset``, all within 256 bytes."""

    offset: int
    size: int
    flags: int


class SetConfig(NamedTuple):
    """SET_CONFIG."""

    offset: int
    data: bytes
    flags: int


class ResetDevice(NamedTuple):
    """RESET_DEVICE: as it was before any features were agreed upon; memory stays."""


class SetStatus(NamedTuple):
    """SET_STATUS: how far the driver is; 0 resets the device."""

    status: int


class GetStatus(NamedTuple):
    """GET_STATUS."""


Body = (
    GetFeatures | SetFeatures | SetOwner | ResetOwner | GetProtocolFeatures | SetProtocolFeatures | GetQueueNum
    | GetMaxMemSlots | SetMemTable | AddMemRegion | RemoveMemRegion | SetVringNum | SetVringAddresses | SetVringBase
    | GetVringBase | SetVringKick | SetVringCall | SetVringError | SetVringEnable | GetConfig | SetConfig | ResetDevice
    | SetStatus | GetStatus
)  # fmt: skip


def describe_request(request: int) -> str:
    """The request's name, for messages."""
    return _NAMES.get(request, f"request {request}")


def decode_header(data: Payload) -> Header:
    """Decode the first 12 bytes of a message. Raises `FormatError` if they do not begin a request, or its payload is
    longer than any: the data after them is then useless too.
    """
    if len(data) != HEADER_BYTES:
        raise FormatError(f"header: {len(data)} bytes, expected {HEADER_BYTES}")
    request, flags, size = _HEADER.unpack(data)
    if flags & protocol_constants.VERSION_MASK != protocol_constants.VERSION or flags & ~_KNOWN_FLAGS:
        raise FormatError(f"{describe_request(request)}: flags {flags:#x}")
    if size > MAX_PAYLOAD_BYTES:
        raise FormatError(f"{describe_request(request)}: a payload of {size} bytes")
    return Header(request, bool(flags & protocol_constants.FLAG_NEED_REPLY), size)


def decode_body(header: Header, payload: Payload, descriptors: Sequence[int]) -> Body:
    """The body of a request with ``payload`` and ``descriptors``.

    Raises `FormatError` if it is unknown or unsupported, for a payload or descriptors that do not belong to it, and for
    numbers that are always wrong. The caller must then still close all descriptors.
    """
    name = describe_request(header.request)
    decode = _DECODERS.get(header.request)
    if decode is None:
        raise FormatError(f"{name}: not served")
    if len(payload) != header.payload_bytes:
        raise FormatError(f"{name}: {len(payload)} bytes, where the header says {header.payload_bytes}")
    return decode(name, payload, descriptors)


def encode_u64(request: int, value: int) -> bytes:
    """A reply that is one number; as an acknowledgement, 0 says that it has worked."""
    return _REPLY_U64.pack(request, _REPLY_FLAGS, _U64.size, value)


def encode_vring_base(index: int, base: int) -> bytes:
    """The reply to GET_VRING_BASE."""
    return _REPLY_VRING_STATE.pack(Request.GET_VRING_BASE, _REPLY_FLAGS, _VRING_STATE.size, index, base)


def encode_config(offset: int, data: bytes, flags: int) -> bytes:
    """The reply to GET_CONFIG."""
    size = _CONFIG.size + len(data)
    return _REPLY_CONFIG.pack(Request.GET_CONFIG, _REPLY_FLAGS, size, offset, len(data), flags) + data


def encode_no_config() -> bytes:
    """The reply to a GET_CONFIG that cannot be answered."""
    return _HEADER.pack(Request.GET_CONFIG, _REPLY_FLAGS, 0)


def _check_descriptors(name: str, descriptors: Sequence[int], expected: int) -> None:
    if len(descriptors) != expected:
        raise FormatError(f"{name}: {len(descriptors)} descriptors, expected {expected}")


def _unpack(name: str, layout: struct.Struct, payload: Payload) -> tuple[int, ...]:
    if len(payload) != layout.size:
        raise FormatError(f"{name}: {len(payload)} bytes, expected {layout.size}")
    return layout.unpack(payload)


def _empty(kind: Callable[[], Body]) -> Decode:
    def decode(name: str, payload: Payload, descriptors: Sequence[int]) -> Body:
        if payload:
            raise FormatError(f"{name}: {len(payload)} bytes, expected none")
        _check_descriptors(name, descriptors, 0)
        return kind()

    return decode


def _number(kind: Callable[[int], Body], most: int = (1 << 64) - 1) -> Decode:
    def decode(name: str, payload: Payload, descriptors: Sequence[int]) -> Body:
        (value,) = _unpack(name, _U64, payload)
        _check_descriptors(name, descriptors, 0)
        if value > most:
            raise FormatError(f"{name}: {value:#x}")
        return kind(value)

    return decode


def _vring_state(name: str, payload: Payload, descriptors: Sequence[int], most: int) -> tuple[int, int]:
    index, value = _unpack(name, _VRING_STATE, payload)
    _check_descriptors(name, descriptors, 0)
    if value > most:
        raise FormatError(f"{name}: {value} for vring {index}")
    return index, value


def _set_vring_num(name: str, payload: Payload, descriptors: Sequence[int]) -> Body:
    index, size = _vring_state(name, payload, descriptors, _INDEX_MAX)
    check_size(size)
    return SetVringNum(index, size)


def _set_vring_base(name: str, payload: Payload, descriptors: Sequence[int]) -> Body:
    return SetVringBase(*_vring_state(name, payload, descriptors, _INDEX_MAX))


def _get_vring_base(name: str, payload: Payload, descriptors: Sequence[int]) -> Body:
    index, _ = _vring_state(name, payload, descriptors, (1 << 32) - 1)
    return GetVringBase(index)


def _set_vring_enable(name: str, payload: Payload, descriptors: Sequence[int]) -> Body:
    index, value = _vring_state(name, payload, descriptors, 1)
    return SetVringEnable(index, value == 1)


def _set_vring_addresses(name: str, payload: Payload, descriptors: Sequence[int]) -> Body:
    index, flags, table, used, available, _log = _unpack(name, _VRING_ADDRESSES, payload)
    _check_descriptors(name, descriptors, 0)
    if flags:
        raise FormatError(f"{name}: flags {flags:#x}: changes of memory are not logged")
    if table % 16 or available % 2 or used % 4:
        raise FormatError(f"{name}: vring {index} is not aligned ({table:#x}, {available:#x}, {used:#x})")
    return SetVringAddresses(index, table, used, available)


def _event(name: str, payload: Payload, descriptors: Sequence[int]) -> tuple[int, int | None]:
    (value,) = _unpack(name, _U64, payload)
    if value & ~(VRING_MASK | NO_DESCRIPTOR):
        raise FormatError(f"{name}: {value:#x}")
    has_none = bool(value & NO_DESCRIPTOR)
    _check_descriptors(name, descriptors, 0 if has_none else 1)
    return value & VRING_MASK, None if has_none else descriptors[0]


def _set_vring_kick(name: str, payload: Payload, descriptors: Sequence[int]) -> Body:
    index, descriptor = _event(name, payload, descriptors)
    if descriptor is None:
        raise FormatError(f"{name}: vring {index} without a descriptor: a ring is not polled")
    return SetVringKick(index, descriptor)


def _set_vring_call(name: str, payload: Payload, descriptors: Sequence[int]) -> Body:
    return SetVringCall(*_event(name, payload, descriptors))


def _set_vring_error(name: str, payload: Payload, descriptors: Sequence[int]) -> Body:
    return SetVringError(*_event(name, payload, descriptors))


def _region(name: str, payload: Payload, at: int) -> MemoryRegion:
    region = MemoryRegion(*_REGION.unpack_from(payload, at))
    check_ranges([(region.guest_address, region.size)], f"{name} guest address")
    check_ranges([(region.user_address, region.size)], f"{name} user address")
    if region.mapping_offset + region.size >= _FILE_END:
        raise FormatError(f"{name}: {region.size} bytes at {region.mapping_offset} are in no file")
    return region


def _set_mem_table(name: str, payload: Payload, descriptors: Sequence[int]) -> Body:
    if len(payload) < _TABLE_HEAD.size:
        raise FormatError(f"{name}: {len(payload)} bytes are too few")
    (count,) = _TABLE_HEAD.unpack_from(payload)
    if not 0 < count <= MAX_REGIONS or len(payload) != _TABLE_HEAD.size + count * _REGION.size:
        raise FormatError(f"{name}: {count} regions in {len(payload)} bytes")
    _check_descriptors(name, descriptors, count)
    regions = [_region(name, payload, _TABLE_HEAD.size + at * _REGION.size) for at in range(count)]
    check_regions(name, regions)
    return SetMemTable(tuple(regions), tuple(descriptors))


def _slot(name: str, payload: Payload) -> MemoryRegion:
    if len(payload) != _SLOT_HEAD_BYTES + _REGION.size:
        raise FormatError(f"{name}: {len(payload)} bytes, expected {_SLOT_HEAD_BYTES + _REGION.size}")
    return _region(name, payload, _SLOT_HEAD_BYTES)


def _add_mem_region(name: str, payload: Payload, descriptors: Sequence[int]) -> Body:
    region = _slot(name, payload)
    _check_descriptors(name, descriptors, 1)
    return AddMemRegion(region, descriptors[0])


def _remove_mem_region(name: str, payload: Payload, descriptors: Sequence[int]) -> Body:
    region = _slot(name, payload)
    if len(descriptors) > 1:
        raise FormatError(f"{name}: {len(descriptors)} descriptors, expected none")
    return RemoveMemRegion(region, descriptors[0] if descriptors else None)


def _config(name: str, payload: Payload, descriptors: Sequence[int]) -> tuple[int, bytes, int]:
    if len(payload) < _CONFIG.size:
        raise FormatError(f"{name}: {len(payload)} bytes are too few")
    offset, size, flags = _CONFIG.unpack_from(payload)
    _check_descriptors(name, descriptors, 0)
    if size != len(payload) - _CONFIG.size or not size or offset + size > MAX_CONFIG_BYTES:
        raise FormatError(f"{name}: {size} bytes at {offset}, in a payload of {len(payload)}")
    return offset, bytes(payload[_CONFIG.size :]), flags


def _get_config(name: str, payload: Payload, descriptors: Sequence[int]) -> Body:
    offset, room, flags = _config(name, payload, descriptors)
    return GetConfig(offset, len(room), flags)


def _set_config(name: str, payload: Payload, descriptors: Sequence[int]) -> Body:
    return SetConfig(*_config(name, payload, descriptors))


def check_regions(where: str, regions: Sequence[MemoryRegion]) -> None:
    """Raises `FormatError` if two regions share addresses of either kind."""
    check_ranges([(region.guest_address, region.size) for region in regions], f"{where} guest addresses")
    check_ranges([(region.user_address, region.size) for region in regions], f"{where} user addresses")


_DECODERS: Final[dict[int, Decode]] = {
    Request.GET_FEATURES: _empty(GetFeatures),
    Request.SET_FEATURES: _number(SetFeatures),
    Request.SET_OWNER: _empty(SetOwner),
    Request.RESET_OWNER: _empty(ResetOwner),
    Request.SET_MEM_TABLE: _set_mem_table,
    Request.SET_VRING_NUM: _set_vring_num,
    Request.SET_VRING_ADDR: _set_vring_addresses,
    Request.SET_VRING_BASE: _set_vring_base,
    Request.GET_VRING_BASE: _get_vring_base,
    Request.SET_VRING_KICK: _set_vring_kick,
    Request.SET_VRING_CALL: _set_vring_call,
    Request.SET_VRING_ERR: _set_vring_error,
    Request.GET_PROTOCOL_FEATURES: _empty(GetProtocolFeatures),
    Request.SET_PROTOCOL_FEATURES: _number(SetProtocolFeatures),
    Request.GET_QUEUE_NUM: _empty(GetQueueNum),
    Request.SET_VRING_ENABLE: _set_vring_enable,
    Request.GET_CONFIG: _get_config,
    Request.SET_CONFIG: _set_config,
    Request.RESET_DEVICE: _empty(ResetDevice),
    Request.GET_MAX_MEM_SLOTS: _empty(GetMaxMemSlots),
    Request.ADD_MEM_REG: _add_mem_region,
    Request.REM_MEM_REG: _remove_mem_region,
    Request.SET_STATUS: _number(SetStatus, 0xFF),
    Request.GET_STATUS: _empty(GetStatus),
}
