"""Files that contain only credentials, recognised by exact names: never by a suffix or by content."""

from __future__ import annotations

_NAMES = frozenset(
    (
        b"id_rsa",
        b"id_dsa",
        b"id_ecdsa",
        b"id_ed25519",
        b".netrc",
        b".pgpass",
        b".git-credentials",
        b"application_default_credentials.json",
    )
)
_IN_DIRECTORIES = frozenset(((b".aws", b"credentials"), (b".docker", b"config.json")))
_LAST = _NAMES | {name for _, name in _IN_DIRECTORIES}

CREDENTIALS = "a file of credentials: `capture.credentials = true` captures those"
"""Why such a file is not captured."""


def is_credential(path: bytes) -> bool:
    """True if the file ``path``, from the workspace's root, is one of credentials."""
    above, _, name = path.rpartition(b"/")
    if name not in _LAST:
        return False
    return name in _NAMES or (above.rpartition(b"/")[2], name) in _IN_DIRECTORIES


def is_environment(path: bytes) -> bool:
    """True if the name of ``path`` is ``.env``, or begins with ``.env.``: settings, often including secrets."""
    name = path.rpartition(b"/")[2]
    return name == b".env" or name.startswith(b".env.")
