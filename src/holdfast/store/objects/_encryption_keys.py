"""The sources of encryption keys: a file, an environment variable, or the output of a command.

A key is 32 bytes: 64 hexadecimal digits, or base64, with optional white space around it; in a file also the bare bytes.
It is never in a configuration file, and no message shows it.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import stat
from typing import TYPE_CHECKING

from holdfast.model.errors import ConfigError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.store.objects._encryption_format import KEY_BYTES, tenant_key

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.store.objects._encryption_format import TenantKey

_PLACE = r"env:[A-Za-z_][A-Za-z0-9_]*|file:[/~].*|command:.*\S.*"

_MOST_BYTES = 4096
_PATIENCE = 30.0


class EncryptionKeys(NamedTuple):
    """The keys of a tenant."""

    current: TenantKey
    """The key for new objects."""
    known: Mapping[bytes, TenantKey]
    """By id: what objects may be encrypted with, the current one among them."""


def load(current: str, old: Sequence[str] = (), *, environ: Mapping[str, str] | None = None) -> EncryptionKeys:
    """The keys at the places that are named. Raises `ConfigError`, `UnsupportedError` without the library."""
    surroundings = os.environ if environ is None else environ
    keys = [tenant_key(_secret(place, surroundings)) for place in (current, *old)]
    return EncryptionKeys(keys[0], {key.id: key for key in reversed(keys)})


def _secret(place: str, environ: Mapping[str, str]) -> bytes:
    if not re.fullmatch(_PLACE, place):
        # The value is not repeated, as it may be the key itself.
        raise ConfigError(
            "store.encryption_key and store.old_keys say where a key is, which this is not: env:NAME, file:PATH "
            "(absolute, or with ~) or command:WORDS"
        )
    kind, _, where = place.partition(":")
    if kind == "env":
        if where not in environ:
            raise ConfigError(f"store.encryption_key: the variable {where} is not set")
        return _decoded(environ[where].encode("utf-8", "surrogateescape"), f"the variable {where}")
    if kind == "file":
        return _decoded(_from_file(os.path.expanduser(where)), where)
    return _decoded(_from_command(where), "what the command prints")


def _from_file(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise ConfigError(f"store.encryption_key: {path} is no regular file")
            if stat.S_IMODE(about.st_mode) & 0o077:
                raise ConfigError(
                    f"store.encryption_key: others may read {path} (mode {stat.S_IMODE(about.st_mode):04o})",
                    hint=f"chmod 600 {path}",
                )
            return file.read(_MOST_BYTES)
    except OSError as error:
        raise ConfigError(f"store.encryption_key: cannot read {path}: {error.strerror}") from error


def _from_command(line: str) -> bytes:
    import shlex

    from holdfast.processes.child import Limits, run_at_terminal

    try:
        words = shlex.split(line)
    except ValueError as error:
        raise ConfigError(f"store.encryption_key: the command is no list of words: {error}") from error
    try:
        ran = run_at_terminal(words, Limits(_PATIENCE, _MOST_BYTES))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it cannot be run"
        raise ConfigError(f"store.encryption_key: cannot run {words[0]}: {reason}") from None
    if ran.why == "time":
        raise ConfigError(f"store.encryption_key: {words[0]} has not ended within {_PATIENCE:.0f} s")
    if ran.code and not ran.why:
        raise ConfigError(f"store.encryption_key: {words[0]} ended with {ran.code}")
    return ran.output[:_MOST_BYTES]


def _decoded(raw: bytes, where: str) -> bytes:
    if len(raw) == KEY_BYTES:
        return raw
    text = raw.strip()
    if re.fullmatch(rb"[0-9a-fA-F]{64}", text):
        return bytes.fromhex(text.decode())
    try:
        found = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        found = b""
    if len(found) != KEY_BYTES:
        raise ConfigError(
            f"store.encryption_key: {where} holds no key: 64 hexadecimal digits, or base64 of {KEY_BYTES} bytes",
            hint="make one: openssl rand -hex 32",
        )
    return found
