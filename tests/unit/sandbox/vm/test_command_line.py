"""What QEMU is told."""

from __future__ import annotations

import os
from itertools import pairwise

import pytest

from holdfast.model.errors import UsageError
from holdfast.sandbox.images.manifest import Image
from holdfast.sandbox.policy import NoNetwork, OpenNetwork, parse_network
from holdfast.sandbox.vm.command_line import Descriptors, arguments, check
from holdfast.sandbox.vm.plan import Accelerator, BootPlan, GuestUser, MachinePlan, Share

IMAGE = Image("default", "id", b"/kernel", b"/initrd", b"/a,b\xff/root", manifest=None)  # type: ignore[arg-type]
PLAN = MachinePlan(IMAGE, 256 << 20, 1, BootPlan(GuestUser("u", 1, 1, b"/home/u")), OpenNetwork(), b"/log")
GIVEN = Descriptors(10, 11, 12, 17, 9, 14, None, ())


def words(plan: MachinePlan = PLAN, given: Descriptors = GIVEN, kind: str = "tcg") -> list[str]:
    return [os.fsdecode(word) for word in arguments(b"/usr/bin/qemu", plan, Accelerator(kind), given)]  # type: ignore[arg-type]


def option(found: list[str], name: str) -> list[str]:
    return [value for word, value in pairwise(found) if word == name]


def test_nothing_is_there_that_was_not_asked_for() -> None:
    found = words(PLAN._replace(network=NoNetwork()))
    assert found[0] == "/usr/bin/qemu"
    assert {"-nodefaults", "-no-user-config", "-no-reboot"} <= set(found)
    assert option(found, "-sandbox") == ["on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"]
    assert option(found, "-device") == [
        "virtio-serial-pci", "virtserialport,chardev=control,name=holdfast.control",
        "virtserialport,chardev=processes,name=holdfast.processes", "virtio-rng-pci,rng=rng",
        "vmgenid,guid=auto", "virtio-blk-pci,drive=root,serial=root",
    ]  # fmt: skip
    assert option(found, "-netdev") == []


def test_all_but_the_image_are_descriptors() -> None:
    found = words(given=GIVEN._replace(disk=16))
    assert option(found, "-kernel") == ["/kernel"]
    assert option(found, "-initrd") == ["/proc/self/fd/14"]
    assert option(found, "-blockdev") == [
        "driver=file,node-name=root,filename=/a,,b\udcff/root,read-only=on",
        "driver=file,node-name=disk-file,filename=/proc/self/fd/16,discard=unmap",
        "driver=qcow2,node-name=disk,file=disk-file,discard=unmap",
    ]
    assert option(found, "-chardev") == [
        "socket,id=monitor,fd=10", "socket,id=console,fd=11", "socket,id=control,fd=12", "socket,id=processes,fd=17"
    ]  # fmt: skip
    assert not any("/initrd" in word for word in found)


def test_each_directory_is_a_device_in_shared_memory() -> None:
    found = words(PLAN._replace(shares=(Share("one", b"/a"), Share("two", b"/b"))), GIVEN._replace(shares=(20, 21)))
    assert option(found, "-device")[-5:-1] == [
        "pcie-root-port,id=slot-0,chassis=1,slot=1",
        "driver=vhost-user-fs-pci,id=share-0,bus=slot-0,chardev=share-0,tag=one",
        "pcie-root-port,id=slot-1,chassis=2,slot=2",
        "driver=vhost-user-fs-pci,id=share-1,bus=slot-1,chardev=share-1,tag=two",
    ]
    assert {"socket,id=share-0,fd=20", "socket,id=share-1,fd=21"} <= set(option(found, "-chardev"))
    assert option(found, "-object")[0] == (
        f"memory-backend-file,id=mem,size={256 << 20},mem-path=/proc/self/fd/9,share=on"
    )


@pytest.mark.parametrize(("network", "restricted"), [(OpenNetwork(), ""), (NoNetwork(), ",restrict=on")])
def test_each_directory_by_9p_is_an_address_of_the_network(network: OpenNetwork, restricted: str) -> None:
    shares = (Share("one", b"/a", kind="9p"), Share("two", b"/b"), Share("three", b"/c", kind="9p"))
    found = words(PLAN._replace(shares=shares, network=network), GIVEN._replace(shares=(20, 21, 22)))
    (net,) = option(found, "-netdev")
    assert net == (
        f"user,id=net,ipv6=off{restricted},guestfwd=tcp:10.0.2.100:5640-chardev:share-0"
        ",guestfwd=tcp:10.0.2.100:5642-chardev:share-2"
    )
    assert {"socket,id=share-0,fd=20", "socket,id=share-2,fd=22"} <= set(option(found, "-chardev"))
    assert [each for each in option(found, "-device") if "vhost" in each or "9p" in each] == [
        "driver=vhost-user-fs-pci,id=share-1,bus=slot-1,chardev=share-1,tag=two"
    ]


def test_mitigations_are_off_for_emulation_alone() -> None:
    assert option(words(), "-append")[0].endswith(" mitigations=off no_timer_check")
    assert option(words(), "-accel") == ["tcg,thread=multi"]
    by_processor = words(kind="kvm")
    assert "mitigations" not in option(by_processor, "-append")[0]
    assert (option(by_processor, "-accel"), option(by_processor, "-cpu")) == (["kvm"], ["host"])


@pytest.mark.parametrize("network", [OpenNetwork(), parse_network("allow", ["192.0.2.1"])])
def test_a_network_is_qemu_s_own(network: OpenNetwork) -> None:
    assert option(words(PLAN._replace(network=network)), "-netdev") == ["user,id=net,ipv6=off"]


@pytest.mark.parametrize(
    "changes",
    [
        {"memory": 64 << 20},
        {"memory": (256 << 20) + 4096},
        {"cpus": 0},
        {"shares": (Share("a,b", b"/a"),)},
        {"shares": (Share("a", b"/a"), Share("a", b"/b"))},
        {"shares": (Share("x" * 37, b"/a"),)},
    ],
)
def test_what_no_machine_can_be(changes: dict[str, object]) -> None:
    check(PLAN)
    with pytest.raises(UsageError):
        check(PLAN._replace(**changes))
