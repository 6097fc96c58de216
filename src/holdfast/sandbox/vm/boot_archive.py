"""The archive that the host appends to an image's first file system at each start: the guest's settings. Pure.

The kernel unpacks one archive after the other (`holdfast.sandbox.images.cpio`), with any compression of the first; the
second begins at a multiple of four bytes.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

from holdfast.sandbox.images import cpio
from holdfast.sandbox.policy import AllowedConnections, NoNetwork
from holdfast.sandbox.vm.plan import ADDRESS_9P, ports_9p

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.sandbox.policy import Network
    from holdfast.sandbox.vm.plan import BootPlan, Share

VERSION = 1
"""Of ``plan.json``."""
_FOLDER = "holdfast"
_ALIGNED = 4
_NAME_SERVER = "10.0.2.3"
"""QEMU's, which asks the first one of the box's ``/etc/resolv.conf``."""
_OPTIONS_9P = "trans=tcp,port={port},version=9p2000.L,msize=131072,cache=none,access=user"
"""See docs/internals/9p.md, "A guest's mount"."""


def boot_archive(boot: BootPlan, shares: Sequence[Share], network: Network, *, init: bytes, shim: bytes) -> bytes:
    """The archive. ``init`` and ``shim`` are programs: `holdfast.sandbox.vm.guest_init`, `holdfast.sandbox.shim`."""
    names = [f"files/{number}" for number in range(len(boot.files))]
    plan = {
        "version": VERSION,
        "hostname": boot.hostname,
        "user": {**boot.user._asdict(), "home": _text(boot.user.home)},
        "mounts": _mounts(shares),
        "network": {"mode": _mode(network, shares), "dns": _name_servers(network)},
        "environment": dict(boot.environment),
        "files": [
            {"source": name, "path": _text(file.path), "mode": file.mode}
            for name, file in zip(names, boot.files, strict=True)
        ],
    }
    content = [("plan.json", json.dumps(plan).encode()), ("guest_init.py", init), ("shim.py", shim)]
    content += [(name, file.content) for name, file in zip(names, boot.files, strict=True)]
    folders = [_FOLDER, *([f"{_FOLDER}/files"] if boot.files else [])]
    # It has programs and secrets: only root may read it.
    return cpio.encode(
        [
            *(cpio.directory(folder.encode()) for folder in folders),
            *(cpio.file(f"{_FOLDER}/{name}".encode(), data, _mode_of(name)) for name, data in content),
        ]
    )


def joined(first: bytes, second: bytes) -> bytes:
    """An archive after another one, compressed or not: it begins where the kernel looks for it."""
    return first + bytes(-len(first) % _ALIGNED) + second


def _mode_of(name: str) -> int:
    return 0o644 if name == "shim.py" else 0o600


def _text(path: bytes) -> str:
    return base64.b64encode(path).decode()


def _mounts(shares: Sequence[Share]) -> list[dict[str, object]]:
    """The arguments of mount(2) for each share, in their order."""
    ports = ports_9p(shares)
    return [
        {
            "source": ADDRESS_9P if share.tag in ports else share.tag,
            "path": _text(share.path),
            "type": share.kind,
            "read_only": share.read_only,
            "options": _OPTIONS_9P.format(port=ports[share.tag]) if share.tag in ports else "",
        }
        for share in shares
    ]


def _mode(network: Network, shares: Sequence[Share]) -> str:
    """``shares``: there is a network for nothing else than these."""
    if isinstance(network, NoNetwork):
        return "shares" if ports_9p(shares) else "disabled"
    return "allow" if isinstance(network, AllowedConnections) else "open"


def _name_servers(network: Network) -> list[str]:
    """The name servers: QEMU's own asks the box's first one, wherever that is; the guest asks the others directly."""
    if isinstance(network, NoNetwork):
        return []
    if not isinstance(network, AllowedConnections):
        return [_NAME_SERVER]
    servers = [server for server in network.dns if server.version == 4]
    return [_NAME_SERVER, *(str(server) for server in servers[1:] if not server.is_loopback)] if servers else []
