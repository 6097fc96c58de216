"""Unfinished multipart uploads to S3: found by their keys, and aborted.

obstore gives no access to them. So this sends the two required requests, signed as
https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html says, with the credentials that are in the
options or the environment. With credentials from another source (a machine's role), none are found: a lifecycle rule of
the bucket (``AbortIncompleteMultipartUpload``) does the same.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import os
import re
import time
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

from holdfast.model.errors import StorageError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.log import Log

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_LOG = Log(__name__)
_MOST_BYTES = 8 << 20
"""Of an answer; a page of 1,000 uploads has less than 2 MiB."""
_MOST_PAGES = 1000
_TRIES = 4
_PAUSE = 0.1
_EMPTY = hashlib.sha256(b"").hexdigest()


class UnfinishedUpload(NamedTuple):
    """An upload in parts that was begun and not finished."""

    key: str
    """With the prefix that the store has in the bucket."""
    upload: str
    begun_at: int
    """Microseconds since 1970-01-01 UTC, by the service's clock."""


class S3Address(NamedTuple):
    """Where a bucket of S3 is, and who asks."""

    endpoint: str
    """``http://host:port`` or ``https://host``; the bucket is the first part of the path."""
    bucket: str
    region: str
    access_key: str
    secret_key: str
    token: str
    timeout: float


def address_of(bucket: str, options: Mapping[str, str], timeout: float) -> S3Address | None:
    """The address, from ``options`` and the environment; None if the credentials are not there, or the bucket is
    part of the host's name.
    """

    def find(*names: str) -> str:
        for name in names:
            for option in (name, f"aws_{name}"):
                if value := options.get(option):
                    return value
        for name in names:
            if value := os.environ.get(f"AWS_{name.upper()}"):
                return value
        return ""

    access, secret = find("access_key_id"), find("secret_access_key")
    if not (access and secret) or find("virtual_hosted_style_request").lower() in ("true", "1", "yes"):
        return None
    region = find("region", "default_region") or "us-east-1"
    endpoint = find("endpoint_url_s3", "endpoint", "endpoint_url") or f"https://s3.{region}.amazonaws.com"
    return S3Address(endpoint.rstrip("/"), bucket, region, access, secret, find("session_token", "token"), timeout)


def unfinished(address: S3Address, prefix: str) -> Iterator[UnfinishedUpload]:
    """The unfinished uploads whose keys begin with ``prefix``. Raises `StorageError`."""
    marks: dict[str, str] = {}
    for _ in range(_MOST_PAGES):
        query = {"uploads": "", "prefix": prefix, "encoding-type": "url", **marks}
        text = _request(address, "GET", "", query).decode("utf-8", "replace")
        for part in re.findall(r"<Upload>(.*?)</Upload>", text, re.DOTALL):
            found = UnfinishedUpload(
                unquote(_field(part, "Key")), _field(part, "UploadId"), _when(_field(part, "Initiated"))
            )
            # Some servers ignore the prefix: foreign uploads must never be touched.
            if found.key.startswith(prefix) and found.upload:
                yield found
        if _field(text, "IsTruncated") != "true":
            return
        following = {
            "key-marker": unquote(_field(text, "NextKeyMarker")),
            "upload-id-marker": _field(text, "NextUploadIdMarker"),
        }
        if following == marks:
            return  # a server that gives the same page for ever
        marks = following


def abort(address: S3Address, upload: UnfinishedUpload) -> None:
    """Discard it, with its existing parts. One that is gone is no error. Raises `StorageError`."""
    _request(address, "DELETE", upload.key, {"uploadId": upload.upload}, missing_is_fine=True)


def sign(
    address: S3Address, method: str, path: str, query: Mapping[str, str], moment: time.struct_time
) -> dict[str, str]:
    """The headers that a request without a body has to carry; ``path`` is quoted already."""
    day, stamp = time.strftime("%Y%m%d", moment), time.strftime("%Y%m%dT%H%M%SZ", moment)
    headers = {"host": urlsplit(address.endpoint).netloc, "x-amz-content-sha256": _EMPTY, "x-amz-date": stamp}
    if address.token:
        headers["x-amz-security-token"] = address.token
    signed = ";".join(sorted(headers))
    lines = [
        method,
        path,
        query_of(query),
        *(f"{name}:{headers[name]}" for name in sorted(headers)),
        "",
        signed,
        _EMPTY,
    ]
    scope = f"{day}/{address.region}/s3/aws4_request"
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    key = f"AWS4{address.secret_key}".encode()
    for part in (day, address.region, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}".encode(), "sha256").hex()
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={address.access_key}/{scope},SignedHeaders={signed},Signature={signature}"
    )
    return headers


def query_of(query: Mapping[str, str]) -> str:
    """A query as it is signed and sent: sorted, everything quoted."""
    return "&".join(f"{quote(name, safe='')}={quote(query[name], safe='')}" for name in sorted(query))


def _request(
    address: S3Address, method: str, key: str, query: Mapping[str, str], *, missing_is_fine: bool = False
) -> bytes:
    base = urlsplit(address.endpoint)
    path = quote(f"{base.path.rstrip('/')}/{address.bucket}" + (f"/{key}" if key else ""), safe="/-._~")
    connect = http.client.HTTPSConnection if base.scheme == "https" else http.client.HTTPConnection
    reason = ""
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(_PAUSE * 2**attempt)
        connection = connect(base.netloc, timeout=address.timeout)
        try:
            headers = sign(address, method, path, query, time.gmtime())
            connection.request(method, f"{path}?{query_of(query)}", headers=headers)
            answer = connection.getresponse()
            body = answer.read(_MOST_BYTES + 1)
        except (OSError, http.client.HTTPException) as error:
            reason = type(error).__name__
            continue
        finally:
            connection.close()
        if answer.status < 300 and len(body) <= _MOST_BYTES:
            return body
        if answer.status == 404 and missing_is_fine:
            return b""
        code = _field(body.decode("utf-8", "replace"), "Code")
        reason = code if re.fullmatch(r"[A-Za-z0-9._-]{1,64}", code) else f"status {answer.status}"
        if answer.status < 500 and answer.status != 429:
            break
    raise StorageError(f"cannot look for unfinished uploads in s3://{address.bucket}: {reason}")


def _field(text: str, name: str) -> str:
    found = re.search(rf"<{name}>([^<]*)</{name}>", text)
    return (
        found[1].replace("&quot;", '"').replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&") if found else ""
    )


def _when(text: str) -> int:
    """The time in an answer; far in the future if it cannot be read, so that nothing is deleted."""
    from datetime import UTC, datetime

    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return 1 << 62
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1_000_000)


def clean(address: S3Address | None, prefixes: Sequence[str], older_than: int) -> int:
    """Abort the unfinished uploads below ``prefixes`` that began before ``older_than``; returns their number.

    Best effort: a service that lacks or forbids these requests is reported in the log.
    """
    if address is None:
        return 0
    removed = 0
    try:
        for prefix in prefixes:
            for upload in unfinished(address, prefix):
                if upload.begun_at < older_than:
                    abort(address, upload)
                    removed += 1
    except StorageError as error:
        _LOG.warning("%s; a lifecycle rule of the bucket can do it (docs/reference/store.md)", error.message)
    return removed
