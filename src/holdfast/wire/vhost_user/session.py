"""The agreement with a front end, and the state of the vrings: when each request is valid, and what it changes.

The order of a front end's messages: GET_FEATURES, then the features of the protocol and their messages; SET_OWNER;
SET_FEATURES, once the driver in the guest has chosen; memory; then for each ring its size, base and addresses, and
SET_VRING_KICK, which starts it. GET_VRING_BASE stops it. All after SET_OWNER may come again: when the machine is paused
and resumed, and after a restart.

A ring is *running* when it is started and enabled. Then it is processed at once, without waiting for a first kick, as
there may be chains that were kicked before the machine was paused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.model.errors import FormatError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.wire.vhost_user import messages
from holdfast.wire.vhost_user.protocol_constants import (
    MAX_CONFIG_BYTES,
    MAX_REGIONS,
    MAX_VRINGS,
    PROTOCOL_FEATURES,
    ProtocolFeature,
    Request,
)
from holdfast.wire.virtio.feature_bits import STATUS_RESET, Feature
from holdfast.wire.virtio.split_queue import RingLayout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.wire.vhost_user.messages import Body, Header, MemoryRegion

_NEEDED: Final[dict[int, ProtocolFeature]] = {
    Request.GET_CONFIG: ProtocolFeature.CONFIG,
    Request.SET_CONFIG: ProtocolFeature.CONFIG,
    Request.RESET_DEVICE: ProtocolFeature.RESET_DEVICE,
    Request.GET_MAX_MEM_SLOTS: ProtocolFeature.CONFIGURE_MEM_SLOTS,
    Request.ADD_MEM_REG: ProtocolFeature.CONFIGURE_MEM_SLOTS,
    Request.REM_MEM_REG: ProtocolFeature.CONFIGURE_MEM_SLOTS,
    Request.SET_STATUS: ProtocolFeature.STATUS,
    Request.GET_STATUS: ProtocolFeature.STATUS,
}
_WITHOUT_OWNER: Final = frozenset(
    {
        Request.GET_FEATURES,
        Request.GET_PROTOCOL_FEATURES,
        Request.SET_PROTOCOL_FEATURES,
        Request.GET_QUEUE_NUM,
        Request.GET_MAX_MEM_SLOTS,
        Request.SET_OWNER,
        Request.RESET_OWNER,
        Request.GET_CONFIG,
        Request.GET_STATUS,
    }
)
_ANSWERED: Final = frozenset(
    {
        Request.GET_FEATURES,
        Request.GET_PROTOCOL_FEATURES,
        Request.GET_QUEUE_NUM,
        Request.GET_MAX_MEM_SLOTS,
        Request.GET_VRING_BASE,
        Request.GET_CONFIG,
        Request.GET_STATUS,
    }
)
"""Their reply is not an acknowledgement."""


class Device(NamedTuple):
    """The features of a back end."""

    vrings: int
    """1 to 256."""
    features: int = int(Feature.VERSION_1 | Feature.INDIRECT_DESC | Feature.EVENT_IDX)
    protocol_features: ProtocolFeature = (
        ProtocolFeature.MQ
        | ProtocolFeature.REPLY_ACK
        | ProtocolFeature.RESET_DEVICE
        | ProtocolFeature.CONFIGURE_MEM_SLOTS
    )
    """`ProtocolFeature.STATUS` can be among them; CONFIG comes by itself."""
    config: bytes = b""
    """The configuration space, at most 256 bytes, which cannot be written. If it is empty, the front end has its own:
    QEMU does for virtio-fs, and warns of a back end that offers one.
    """


class Vring:
    """One ring, as the front end has described it. To be read; only `base` is for the back end to set."""

    __slots__ = ("addresses", "base", "call", "enabled", "error", "index", "kick", "size")

    def __init__(self, index: int) -> None:
        self.index: Final = index
        self.size = 0
        self.addresses: tuple[int, int, int] | None = None
        """User addresses of the descriptors, the available ring and the used ring."""
        self.base = 0
        """The index of the first chain to take. When the ring is stopped, the back end sets it to the next one."""
        self.kick: int | None = None
        self.call: int | None = None
        self.error: int | None = None
        self.enabled = False

    @property
    def is_started(self) -> bool:
        """Whether the front end has started it, and not stopped it since."""
        return self.kick is not None

    @property
    def is_running(self) -> bool:
        """Whether it is to be processed."""
        return self.kick is not None and self.enabled

    @property
    def layout(self) -> RingLayout | None:
        """Its place; None while unknown."""
        if self.addresses is None or not self.size:
            return None
        return RingLayout(self.size, *self.addresses)


class Session:
    """One connection of a front end.

    `receive` only changes the state; the caller must then apply it: run the rings as in `vrings`, and map memory as in
    the request. Then the descriptors in `released` are to be closed, and `reply` is the answer.
    """

    __slots__ = ("_device", "features", "is_owned", "protocol_features", "regions", "released", "status", "vrings")

    def __init__(self, device: Device) -> None:
        if not 0 < device.vrings <= MAX_VRINGS or len(device.config) > MAX_CONFIG_BYTES:
            raise ValueError(f"{device.vrings} vrings, {len(device.config)} bytes of configuration")
        protocol_features = device.protocol_features & ~ProtocolFeature.CONFIG
        if device.config:
            protocol_features |= ProtocolFeature.CONFIG
        self._device: Final = device._replace(
            features=device.features | PROTOCOL_FEATURES, protocol_features=protocol_features
        )
        self.is_owned = False
        self.features: int | None = None
        """The agreed features; None until then."""
        self.protocol_features = ProtocolFeature(0)
        self.regions: tuple[MemoryRegion, ...] = ()
        """The guest's memory."""
        self.status = 0
        self.vrings: Final = tuple(Vring(index) for index in range(device.vrings))
        self.released: Final[list[int]] = []
        """Descriptors that no vring has any more, for the caller to close and to take out of here."""

    def receive(self, header: Header, payload: bytes | bytearray | memoryview, descriptors: Sequence[int]) -> Body:
        """Decode a request and apply it to the state.

        Raises `FormatError` for one that is wrong, or not allowed now. Then nothing has changed, its descriptors still
        belong to the caller, and `refusal` is the answer.
        """
        body = messages.decode_body(header, payload, descriptors)
        name = messages.describe_request(header.request)
        needed = _NEEDED.get(header.request, ProtocolFeature(0))
        if needed & ~self.protocol_features:
            raise FormatError(f"{name}: {needed.name} was not agreed upon")
        if not self.is_owned and header.request not in _WITHOUT_OWNER:
            raise FormatError(f"{name}: before SET_OWNER")
        match body:
            case messages.SetOwner():
                self.is_owned = True
            case messages.ResetOwner():
                self._stop_all()
            case messages.SetFeatures(features):
                self._set_features(features)
            case messages.SetProtocolFeatures(features):
                self._set_protocol_features(features)
            case messages.SetMemTable(regions):
                self.regions = regions
            case messages.AddMemRegion(region):
                self._add_region(region)
            case messages.RemoveMemRegion(region, descriptor):
                self._remove_region(region, descriptor)
            case messages.GetConfig(offset, size) if offset + size > len(self._device.config):
                raise FormatError(f"{name}: {size} bytes at {offset} of {len(self._device.config)}")
            case messages.SetConfig():
                raise FormatError(f"{name}: the configuration cannot be written")
            case messages.ResetDevice():
                self._reset()
            case messages.SetStatus(status):
                self._set_status(status)
            case _:
                self._receive_for_vring(name, body)
        return body

    def reply(self, header: Header, body: Body) -> bytes | None:
        """The answer to a request that `receive` has accepted and the caller has performed, or None if it has none.

        GET_VRING_BASE is answered with the vring's `base`.
        """
        match body:
            case messages.GetFeatures():
                return messages.encode_u64(header.request, self._device.features)
            case messages.GetProtocolFeatures():
                return messages.encode_u64(header.request, self._device.protocol_features)
            case messages.GetQueueNum():
                return messages.encode_u64(header.request, self._device.vrings)
            case messages.GetMaxMemSlots():
                return messages.encode_u64(header.request, MAX_REGIONS)
            case messages.GetStatus():
                return messages.encode_u64(header.request, self.status)
            case messages.GetVringBase(index):
                return messages.encode_vring_base(index, self.vrings[index].base)
            case messages.GetConfig(offset, size, flags):
                return messages.encode_config(offset, self._device.config[offset : offset + size], flags)
            case _:
                return self._acknowledgement(header, 0)

    def refusal(self, header: Header) -> bytes | None:
        """The answer to a request that was refused, or that the caller could not carry out. None if there is no way to
        say so: then close the connection, as the front end would go on as if it had worked.
        """
        if header.request == Request.GET_CONFIG:
            return messages.encode_no_config()
        return None if header.request in _ANSWERED else self._acknowledgement(header, 1)

    def close(self) -> None:
        """The connection has ended: every ring stops, and every descriptor is in `released`."""
        for vring in self.vrings:
            self._release(vring.kick, vring.call, vring.error)
            vring.kick = vring.call = vring.error = None
            vring.enabled = False

    def _acknowledgement(self, header: Header, result: int) -> bytes | None:
        if header.needs_reply and ProtocolFeature.REPLY_ACK in self.protocol_features:
            return messages.encode_u64(header.request, result)
        return None

    def _release(self, *descriptors: int | None) -> None:
        self.released.extend(descriptor for descriptor in descriptors if descriptor is not None)

    def _stop(self, vring: Vring) -> None:
        self._release(vring.kick)
        vring.kick = None

    def _stop_all(self) -> None:
        for vring in self.vrings:
            self._stop(vring)
            vring.enabled = False

    def _reset(self) -> None:
        """All but the memory, and the events that QEMU gives a vring once for all."""
        self._stop_all()
        for vring in self.vrings:
            vring.size = vring.base = 0
            vring.addresses = None
        self.features = None
        self.status = STATUS_RESET

    def _set_features(self, features: int) -> None:
        if features & ~self._device.features:
            raise FormatError(f"SET_FEATURES: {features & ~self._device.features:#x} was not offered")
        if not features & Feature.VERSION_1:
            raise FormatError("SET_FEATURES: a driver without VERSION_1 is not served")
        if features != self.features and any(vring.is_started for vring in self.vrings):
            raise FormatError("SET_FEATURES: a vring is started")
        self.features = features
        if not features & PROTOCOL_FEATURES:
            for vring in self.vrings:
                vring.enabled = True

    def _set_protocol_features(self, features: int) -> None:
        if features & ~self._device.protocol_features:
            raise FormatError(f"SET_PROTOCOL_FEATURES: {features & ~self._device.protocol_features:#x} was not offered")
        self.protocol_features = ProtocolFeature(features)

    def _set_status(self, status: int) -> None:
        if status == STATUS_RESET:
            self._reset()
        self.status = status

    def _add_region(self, region: MemoryRegion) -> None:
        if len(self.regions) == MAX_REGIONS:
            raise FormatError(f"ADD_MEM_REG: {MAX_REGIONS} regions are there already")
        regions = (*self.regions, region)
        messages.check_regions("ADD_MEM_REG", regions)
        self.regions = regions

    def _remove_region(self, region: MemoryRegion, descriptor: int | None) -> None:
        rest = tuple(other for other in self.regions if other[:3] != region[:3])
        if len(rest) == len(self.regions):
            raise FormatError(f"REM_MEM_REG: no region of {region.size} bytes at {region.guest_address:#x}")
        self.regions = rest
        self._release(descriptor)

    def _vring(self, name: str, index: int) -> Vring:
        if index >= len(self.vrings):
            raise FormatError(f"{name}: vring {index} of {len(self.vrings)}")
        return self.vrings[index]

    def _stopped_vring(self, name: str, index: int) -> Vring:
        vring = self._vring(name, index)
        if vring.is_started:
            raise FormatError(f"{name}: vring {index} is started")
        return vring

    def _receive_for_vring(self, name: str, body: Body) -> None:
        match body:
            case messages.SetVringNum(index, size):
                self._stopped_vring(name, index).size = size
            case messages.SetVringBase(index, base):
                self._stopped_vring(name, index).base = base
            case messages.SetVringAddresses(index, descriptors, used, available):
                vring = self._vring(name, index)
                addresses = descriptors, available, used
                if vring.is_started and addresses != vring.addresses:
                    raise FormatError(f"{name}: vring {index} is started")
                vring.addresses = addresses
            case messages.SetVringKick(index, descriptor):
                vring = self._vring(name, index)
                if self.features is None or vring.layout is None:
                    raise FormatError(f"{name}: vring {index} has no features, size or addresses yet")
                self._release(vring.kick)
                vring.kick = descriptor
            case messages.SetVringCall(index, descriptor):
                vring = self._vring(name, index)
                self._release(vring.call)
                vring.call = descriptor
            case messages.SetVringError(index, descriptor):
                vring = self._vring(name, index)
                self._release(vring.error)
                vring.error = descriptor
            case messages.SetVringEnable(index, enabled):
                self._vring(name, index).enabled = enabled
            case messages.GetVringBase(index):
                self._stop(self._vring(name, index))
            case _:
                pass
