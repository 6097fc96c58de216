"""Errors of a bucket, in words for people: the bucket and key, the service's message, the remedy.

The messages of the service's library contain complete requests and answers; only the status and the service's own code
are shown, and never a credential.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from holdfast.model.errors import HoldfastError, NotFoundError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable

_MOST = 200
"""Characters of what a service says that are repeated."""
_STATUS = re.compile(r"status code: (\d{3}[^:\n<]*)")
_CODE = re.compile(r"<Code>([A-Za-z0-9._-]{1,64})</Code>")
_LATE = re.compile(r"TimedOut|(?i:operation timed out)|deadline has elapsed")
_RETRIES = re.compile(r"after (\d+) retries")
_USERINFO = re.compile(r"//[^/\s@]+@")
_SECRET_QUERY = re.compile(r"(?i)((?:signature|credential|token|secret|sig|key)[^=\s&]*=)[^\s&\"<]+")

_DENIED = ("AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken")
_ELSEWHERE = ("PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException")
_KEY_REFUSED = ("KMS.",)
_WHO = (
    "see whether the credentials (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, or this machine's role) "
    "may read, write, list and delete in the bucket"
)

SECRET_NAMES = (
    "secret",
    "token",
    "access_key",
    "sas",
    "password",
    "customer_key",
    "private_key",
    "service_account_key",
)
"""Parts of the names of options and variables that hold a credential."""


def is_secret(name: str) -> bool:
    """True if an option of this name holds a credential, or a substitute for one."""
    return any(part in name.lower() for part in SECRET_NAMES)


class Secrets:
    """Credentials that must not be shown: those among some options, and those in the environment."""

    __slots__ = ("_values",)

    def __init__(self, options: Iterable[tuple[str, str]] = ()) -> None:
        found = [value for name, value in options if is_secret(name)]
        for name, value in os.environ.items():
            if name.startswith(("AWS_", "GOOGLE_", "AZURE_")) and is_secret(name):
                found.append(value)
        # The longest first, since one may be part of another. Very short ones are no credentials, but words.
        self._values = sorted({value for value in found if len(value) >= 4}, key=len, reverse=True)

    def hidden_in(self, text: str) -> str:
        """``text`` without them."""
        for value in self._values:
            text = text.replace(value, "***")
        return _SECRET_QUERY.sub(r"\1***", _USERINFO.sub("//***@", text))


def lacks_bucket(text: str) -> bool:
    """True if it is not the object that is missing, but the whole bucket."""
    return "NoSuchBucket" in text or "The specified bucket does not exist" in text or "ContainerNotFound" in text


def translated(error: Exception, action: str, key: str, bucket: str, secrets: Secrets) -> HoldfastError:
    """The error to raise for one of the service's library."""
    raw = str(error)
    if isinstance(error, FileNotFoundError) and not lacks_bucket(raw):
        return NotFoundError(f"no object {key}")
    reason, hint = _explained(error, raw, bucket)
    tried = _RETRIES.search(raw)
    often = f" (tried {int(tried[1]) + 1} times)" if tried and int(tried[1]) else ""
    return StorageError(secrets.hidden_in(f"cannot {action} {key} in {bucket}: {reason}{often}"), hint=hint)


def _explained(error: Exception, raw: str, bucket: str) -> tuple[str, str]:
    """The reason in few words, and what to look at."""
    status, code = _STATUS.search(raw), _CODE.search(raw)
    said = status[1].strip() if status else ""
    name = code[1] if code else ""
    if lacks_bucket(raw):
        return "there is no such bucket", f"create it, or correct store.url: it says {bucket}"
    if name in _DENIED or said[:3] in ("401", "403") or type(error).__name__.startswith(("Perm", "Unauth")):
        return (
            f"it was denied ({name or said or 'no permission'})",
            _WHO,
        )
    if name in _ELSEWHERE or said[:3] in ("301", "307") or "incorrectly configured region" in raw:
        return (
            f"the bucket is in another region ({name or said or 'a redirect'})",
            "name its region: store.options = ['region=…']",
        )
    if name.startswith(_KEY_REFUSED):
        return f"the service refused its key ({name})", "look at sse_kms_key_id in store.options, and its permissions"
    if name == "SlowDown" or said[:3] in ("429", "500", "502", "503", "504"):
        return f"the service is overloaded or broken ({name or said})", "try again later; nothing was lost"
    if "InvalidRange" in name or said[:3] == "416":
        return f"there is no such range ({name or said})", "`holdfast verify` lists all damage"
    # The rest shows the library's settings, with misleading words.
    lowered = raw.partition("Debug source")[0].lower()
    if "credential" in lowered or "169.254." in lowered:
        return (
            "there are no credentials",
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give this machine a role that may use the bucket",
        )
    if _LATE.search(raw):
        return "the service did not answer in time", "look at the network and at store.timeout; nothing was lost"
    if "error sending request" in lowered or "connect" in lowered or "dns" in lowered:
        return (
            "the service cannot be reached",
            "look at the network, and at `endpoint` in store.options (plain http:// also needs allow_http=true)",
        )
    first = (raw.splitlines() or [type(error).__name__])[0]
    reason = " ".join(part for part in (said, name) if part) or first[:_MOST]
    return reason, "`holdfast store probe` tries the bucket step by step"
