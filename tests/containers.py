"""Small archives of containers' images, good and hostile."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), "amd64")

Pack = Callable[[bytes], bytes]


def member(name: str, content: bytes = b"", **more: Any) -> tuple[tarfile.TarInfo, bytes]:
    """A member of a layer; ``more`` are fields of `tarfile.TarInfo`."""
    about = tarfile.TarInfo(name)
    about.size = len(content)
    about.mode = 0o755
    for field, value in more.items():
        setattr(about, field, value)
    return about, content


def link(name: str, target: str, *, hard: bool = False) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, linkname=target, type=tarfile.LNKTYPE if hard else tarfile.SYMTYPE)


def directory(name: str, mode: int = 0o755) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=tarfile.DIRTYPE, mode=mode)


def tar(*members: tuple[tarfile.TarInfo, bytes], form: Any = tarfile.PAX_FORMAT) -> bytes:
    """An archive. Nothing checks what the members say."""
    out = io.BytesIO()
    for about, content in members:
        out.write(about.tobuf(form, "utf-8", "surrogateescape"))
        out.write(content + bytes(-len(content) % 512))
    return out.getvalue() + bytes(1024)


PYTHON = tar(
    directory("usr/bin"),
    link("bin", "usr/bin"),
    member("usr/bin/python3.11", b"\x7fELF"),
    link("usr/bin/python3", "python3.11"),
)
"""A layer that a machine can start with."""


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def configuration(layers: Sequence[bytes], architecture: str = ARCHITECTURE) -> bytes:
    about = {
        "architecture": architecture,
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": list(map(digest, layers))},
    }
    return json.dumps(about).encode()


def files(parts: Mapping[str, bytes]) -> bytes:
    """An archive with these files."""
    return tar(*(member(name, content, mode=0o644) for name, content in parts.items()))


def docker(*layers: bytes, pack: Pack = bytes, architecture: str = ARCHITECTURE) -> bytes:
    """As ``docker save`` writes it."""
    names = [f"{number}/layer.tar" for number in range(len(layers))]
    manifest = [{"Config": "config.json", "RepoTags": ["x:1"], "Layers": names}]
    return files(
        {
            "manifest.json": json.dumps(manifest).encode(),
            "config.json": configuration(layers, architecture),
            **{name: pack(layer) for name, layer in zip(names, layers, strict=True)},
        }
    )


def oci(*layers: bytes, pack: Pack = gzip.compress, architecture: str = ARCHITECTURE, nested: bool = False) -> bytes:
    """As ``skopeo copy … oci-archive:`` writes it; ``nested``: with an index in the index, and other platforms."""
    blobs: dict[str, bytes] = {}

    def put(data: bytes, kind: str, **more: object) -> dict[str, object]:
        blobs[f"blobs/{digest(data).replace(':', '/')}"] = data
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": digest(data), "size": len(data), **more}

    manifest = {
        "schemaVersion": 2,
        "config": put(configuration(layers, architecture), "config.v1+json"),
        "layers": [put(pack(layer), "layer.v1.tar+gzip") for layer in layers],
    }
    entry = put(json.dumps(manifest).encode(), "manifest.v1+json")
    if nested:
        entry["platform"] = {"architecture": architecture, "os": "linux"}
        said = put(b"{}", "manifest.v1+json", platform={"architecture": "unknown", "os": "unknown"})
        other = {"digest": "sha256:" + "0" * 64, "mediaType": "x", "platform": {"architecture": "s390x", "os": "linux"}}
        entry = put(json.dumps({"manifests": [said, other, entry]}).encode(), "index.v1+json")
    index = {"schemaVersion": 2, "manifests": [entry]}
    return files({"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": json.dumps(index).encode(), **blobs})
