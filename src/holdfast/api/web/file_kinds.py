"""The kind of a content for a browser: text, an image that it may show, or bytes."""

from __future__ import annotations

from typing import Final

from holdfast.engine.diffs.git_patch import is_binary

SANDBOX: Final = "default-src 'none'; style-src 'unsafe-inline'; sandbox"
"""The policy for raw files: no scripts, no loading, and an opaque origin."""

MOST_RAW_BYTES: Final = 16 << 20

_IMAGES: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"BM", "image/bmp"),
    (b"\x00\x00\x01\x00", "image/x-icon"),
)


def image_type(path: bytes, content: bytes) -> str | None:
    """The media type of an image that a browser may show; None for anything else. The content decides; of SVG, which is
    text, the name as well.
    """
    for magic, kind in _IMAGES:
        if content.startswith(magic):
            return kind
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    if content[4:12] in (b"ftypavif", b"ftypavis"):
        return "image/avif"
    if path.lower().endswith(b".svg") and b"<svg" in content[:4096]:
        return "image/svg+xml"
    return None


def may_be_image(path: bytes) -> bool:
    """Whether a name is that of an image: its content is worth a look."""
    return path.lower().endswith((b".png", b".jpg", b".jpeg", b".gif", b".bmp", b".ico", b".webp", b".avif", b".svg"))


def raw_type(path: bytes, content: bytes) -> str:
    """The media type that a content is served with as it is: nothing that a browser would run."""
    found = image_type(path, content)
    if found is not None:
        return found
    return "application/octet-stream" if is_binary(content) else "text/plain"
