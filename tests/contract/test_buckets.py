"""Buckets keep the contract of object stores: S3 by HTTP, encrypted, cached, and before bad services and networks."""

from __future__ import annotations

import os
import random
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.model.errors import ConfigError, HoldfastError, IntegrityError, NotFoundError, StorageError
from holdfast.store.blobs.content_writer import BlobWriter
from holdfast.store.identity import bucket_claim
from holdfast.store.objects import bucket_probe
from holdfast.store.objects._encrypted_store import EncryptedObjects
from holdfast.store.objects._encryption_format import tenant_key
from holdfast.store.objects._encryption_keys import EncryptionKeys
from holdfast.store.objects._local_store import LocalObjects
from holdfast.store.objects.cached_store import BLOCK_BYTES, CachedObjects
from holdfast.store.objects.configured_store import parse_options
from holdfast.store.objects.object_store import ObjectStore
from holdfast.store.objects.remote_store import RemoteObjects, RequestLimits, open_bucket
from holdfast.testing.object_store_contract import ObjectStoreContract

from ..buckets import CUT, KEY, SECRET, Answer, Asked, Service, refuse
from ..sampling import some

pytest.importorskip("cryptography", reason="needs cryptography (extra dev)")

pytestmark = pytest.mark.usefixtures("credentials")

_KEY = tenant_key(b"k" * 32)
KEYS = EncryptionKeys(_KEY, {_KEY.id: _KEY})
MIB = 1 << 20


@pytest.fixture
def name(service: Service) -> str:
    service.proxy.reset()
    return service.bucket()


@pytest.fixture
def bucket(service: Service, name: str) -> RemoteObjects:
    return opened(service, name)


def opened(service: Service, name: str, *, retries: int = 3, timeout: float = 10.0) -> RemoteObjects:
    limits = RequestLimits(timeout, retries, 2)
    return open_bucket(f"s3://{name}/some/prefix", service.options(), tenant="t", limits=limits)


class TestS3(ObjectStoreContract):
    @pytest.fixture
    def objects(self, bucket: RemoteObjects) -> ObjectStore:
        return bucket


class TestEncryptedLocal(ObjectStoreContract):
    @pytest.fixture
    def objects(self, tmp_path: Path) -> ObjectStore:
        return EncryptedObjects(LocalObjects(str(tmp_path / "objects")), KEYS)


class TestEncryptedInMemory(ObjectStoreContract):
    @pytest.fixture
    def objects(self) -> ObjectStore:
        return EncryptedObjects(open_bucket("memory://"), KEYS)


class TestEncryptedCachedS3(ObjectStoreContract):
    @pytest.fixture
    def objects(self, bucket: RemoteObjects, tmp_path: Path) -> ObjectStore:
        return EncryptedObjects(CachedObjects(bucket, os.fsencode(tmp_path / "cache"), 64 * MIB), KEYS)


class TestCached(ObjectStoreContract):
    @pytest.fixture
    def objects(self, tmp_path: Path) -> ObjectStore:
        return CachedObjects(open_bucket("memory://"), os.fsencode(tmp_path / "cache"), 64 * MIB)


@pytest.mark.thorough
class TestBadNetwork(ObjectStoreContract):
    """Every third request fails, each in another way that may pass."""

    @pytest.fixture
    def objects(self, service: Service, bucket: RemoteObjects) -> ObjectStore:
        ways = (
            Answer(503, b"<Error><Code>SlowDown</Code></Error>"),
            CUT,
            Answer(500, b"<Error><Code>InternalError</Code></Error>"),
        )
        lock, count = threading.Lock(), [0]

        def before(asked: Asked) -> Answer | None:
            with lock:
                count[0] += 1
                return ways[count[0] // 3 % len(ways)] if not count[0] % 3 else None

        service.proxy.before = before
        return opened(service, bucket.name.split("/")[2], retries=8)


# --- retries, limits, errors ---


@pytest.mark.parametrize(("status", "code"), [(503, "SlowDown"), (500, "InternalError"), (429, "TooMany"), (0, "")])
def test_what_may_pass_is_tried_again(service: Service, bucket: RemoteObjects, status: int, code: str) -> None:
    service.proxy.before = refuse(status, code, 2)
    bucket.put("packs/t/a", [b"content"])
    service.proxy.before = refuse(status, code, 2)
    assert bucket.get("packs/t/a", 1, 3) == b"ont"
    service.proxy.before = refuse(status, code, 2)
    assert [info.key for info in bucket.list("packs/t/")] == ["packs/t/a"]
    service.proxy.before = refuse(status, code, 1, "DELETE")
    bucket.delete("packs/t/a")
    assert bucket.size("packs/t/a") is None


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (503, "SlowDown", "overloaded"),
        (403, "AccessDenied", "denied"),
        (403, "SignatureDoesNotMatch", "credentials"),
        (301, "PermanentRedirect", "region"),
        (0, "", "reached|in time"),
    ],
)
def test_what_does_not_pass_is_told_in_words_for_people(
    service: Service, name: str, status: int, code: str, words: str
) -> None:
    bucket = opened(service, name, retries=1)
    service.proxy.before = refuse(status, code, 1000)
    for attempt in (
        lambda: bucket.put("packs/t/a", [b"x"]),
        lambda: bucket.get("packs/t/a"),
        lambda: list(bucket.list("packs/t/")),
        lambda: bucket.size("packs/t/a"),
    ):
        with pytest.raises(StorageError) as refused:
            attempt()
        said = f"{refused.value.message} {refused.value.hint}"
        assert re.search(words, said), said
        assert f"s3://{name}/some/prefix" in said
        for secret in (SECRET, KEY, "Authorization", "Signature="):
            assert secret not in said
        assert "\n" not in refused.value.message


def test_a_bucket_that_is_not_there_is_not_a_missing_object(service: Service, name: str) -> None:
    missing = opened(service, "nowhere-at-all")
    for attempt in (lambda: missing.put("a", [b"x"]), lambda: missing.get("a"), lambda: list(missing.list(""))):
        with pytest.raises(StorageError, match="no such bucket"):
            attempt()


def test_a_server_that_does_not_answer_is_given_up(service: Service, name: str) -> None:
    bucket = opened(service, name, retries=0, timeout=0.3)
    hold = threading.Event()

    def wait(asked: Asked) -> None:
        hold.wait(20)

    service.proxy.before = wait
    try:
        with pytest.raises(StorageError, match=r"in time|reached"):
            bucket.get("packs/t/a")
    finally:
        hold.set()


def test_nobody_listens_there() -> None:
    bucket = open_bucket(
        "s3://b", {"endpoint": "http://127.0.0.1:9", "allow_http": "true"}, limits=RequestLimits(2.0, 0, 1)
    )
    with pytest.raises(StorageError, match="cannot be reached") as refused:
        bucket.get("a")
    assert "endpoint" in (refused.value.hint or "")


@pytest.mark.parametrize("option", ["secret_access_key=x", "aws_session_token=x", "nothing", "=x", "access_key_id=y"])
def test_options_hold_no_credentials(option: str) -> None:
    with pytest.raises(ConfigError):
        parse_options((option,))
    assert parse_options(("Region=eu-west-1", "endpoint = http://x=y")) == {
        "region": "eu-west-1",
        "endpoint": "http://x=y",
    }


def test_an_option_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ConfigError, match="nonsense"):
        open_bucket("s3://b", {"nonsense": "1"})


def test_at_rest_encryption_of_the_bucket_is_asked_for(service: Service, name: str) -> None:
    options = service.options() | {"server_side_encryption": "aws:kms", "sse_kms_key_id": "a-key"}
    open_bucket(f"s3://{name}", options).put("packs/t/a", [b"x"])
    put = next(asked for asked in service.proxy.asked if asked.method == "PUT")
    assert put.headers["x-amz-server-side-encryption"] == "aws:kms"
    assert put.headers["x-amz-server-side-encryption-aws-kms-key-id"] == "a-key"


# --- what a service may do wrong ---


def test_a_body_that_is_cut_off_is_asked_for_again(service: Service, bucket: RemoteObjects) -> None:
    data = random.Random(1).randbytes(3 * MIB)
    bucket.put("blobs/t/a", [data])
    left = [2]

    def cut(asked: Asked, answer: Answer) -> Answer:
        if asked.method == "GET" and left[0]:
            left[0] -= 1
            return answer._replace(body=answer.body[: len(answer.body) // 2], length=len(answer.body))
        return answer

    service.proxy.after = cut
    assert bucket.get("blobs/t/a") == data
    left[0] = 1
    assert bucket.get("blobs/t/a", 100, 2 * MIB) == data[100 : 100 + 2 * MIB]
    left[0] = 2
    assert b"".join(bucket.stream("blobs/t/a")) == data
    left[0] = 1000
    bucket = opened(service, bucket.name.split("/")[2], retries=0)
    for attempt in (
        lambda: bucket.get("blobs/t/a"),
        lambda: bucket.get("blobs/t/a", 5, 1000),
        lambda: list(bucket.stream("blobs/t/a")),
    ):
        with pytest.raises(HoldfastError) as refused:
            attempt()
        assert isinstance(refused.value, (StorageError, IntegrityError))


def test_another_range_than_was_asked_for_is_refused(service: Service, bucket: RemoteObjects) -> None:
    data = bytes(range(256)) * 16
    bucket.put("packs/t/a", [data])

    def shift(asked: Asked, answer: Answer) -> Answer:
        if "range" not in asked.headers or answer.status != 206:
            return answer
        headers = tuple(
            (name, value.replace("bytes 16-", "bytes 17-") if name.lower() == "content-range" else value)
            for name, value in answer.headers
        )
        return answer._replace(headers=headers)

    service.proxy.after = shift
    with pytest.raises((StorageError, IntegrityError)):
        bucket.get("packs/t/a", 16, 16)
    service.proxy.after = lambda asked, answer: answer._replace(status=200) if answer.status == 206 else answer
    with pytest.raises((StorageError, IntegrityError)):
        bucket.get("packs/t/a", 16, 16)


def test_a_listing_has_any_number_of_pages(service: Service, name: str, bucket: RemoteObjects) -> None:
    for at in range(25):
        service.ask("PUT", f"/{name}/some/prefix/packs/t/{at:02d}", b"x")
    original = service.proxy.forward
    pages = [0]

    def small_pages(asked: Asked, body: bytes) -> Answer:
        if "list-type=2" in asked.path:
            pages[0] += 1
            asked = asked._replace(path=asked.path + "&max-keys=10")
        return original(asked, body)

    service.proxy.forward = small_pages
    try:
        assert len(list(bucket.list("packs/t/"))) == 25
    finally:
        service.proxy.forward = original
    assert pages[0] == 3


def test_a_listing_that_never_ends_is_left(service: Service, name: str, bucket: RemoteObjects) -> None:
    service.ask("PUT", f"/{name}/some/prefix/packs/t/a", b"x")

    original = service.proxy.forward

    def again(asked: Asked, body: bytes) -> Answer:
        asked = asked._replace(path=re.sub(r"continuation-token=x&?", "", asked.path))
        answer = original(asked, body)
        if "list-type=2" not in asked.path:
            return answer
        body = answer.body.replace(
            b"<IsTruncated>false", b"<NextContinuationToken>x</NextContinuationToken><IsTruncated>true"
        )
        return answer._replace(body=body)

    service.proxy.forward = again
    try:
        with pytest.raises(IntegrityError, match="again and again"):
            list(bucket.list("packs/t/"))
    finally:
        service.proxy.forward = original


# --- large objects ---


def test_a_large_object_goes_in_parts_several_at_once(service: Service, name: str, bucket: RemoteObjects) -> None:
    data = random.Random(2).randbytes(20 * MIB + 5)
    lock, at_once, most = threading.Lock(), [0], [0]
    both = threading.Event()

    def before(asked: Asked) -> None:
        if asked.is_part:
            with lock:
                at_once[0] += 1
                most[0] = max(most[0], at_once[0])
                if at_once[0] > 1:
                    both.set()
            both.wait(5)

    def after(asked: Asked, answer: Answer) -> Answer:
        if asked.is_part:
            with lock:
                at_once[0] -= 1
        return answer

    service.proxy.before, service.proxy.after = before, after
    upload = bucket.upload()
    for at in range(0, len(data), MIB):
        upload.write(data[at : at + MIB])
    assert not service.proxy.asked
    upload.commit("blobs/t/large")
    assert sum(asked.is_part for asked in service.proxy.asked) == 3
    assert most[0] == 2
    assert bucket.get("blobs/t/large") == data
    assert service.unfinished(name) == []


def test_a_pack_goes_out_while_the_next_is_made(service: Service, bucket: RemoteObjects) -> None:
    both = threading.Event()
    started: list[str] = []

    def before(asked: Asked) -> None:
        if asked.method == "PUT":
            started.append(asked.path)  # (it waits in vain if the second only follows the first)
            if len(started) == 2:
                both.set()
            both.wait(5)

    service.proxy.before = before
    source = random.Random(1)
    writer = BlobWriter(
        bucket, "t", lambda _: set(), lambda _: {}, os.urandom, generation_of=lambda _: 0, pack_bytes=MIB
    )
    for _ in range(320):
        writer.add(source.randbytes(16 << 10))
    written = writer.finish()
    assert both.is_set(), "the second pack did not go out before the first was there"
    assert len(written.packs) == len(list(bucket.list("packs/t/"))) == 5
    assert {bucket.size(pack.key) for pack in written.packs} == {pack.size for pack in written.packs}


def test_a_pack_that_cannot_be_sent_aside_is_told(service: Service, bucket: RemoteObjects) -> None:
    service.proxy.before = refuse(403, "AccessDenied", 1)
    source = random.Random(1)
    writer = BlobWriter(
        bucket, "t", lambda _: set(), lambda _: {}, os.urandom, generation_of=lambda _: 0, pack_bytes=MIB
    )

    def work() -> None:
        for _ in range(320):
            writer.add(source.randbytes(16 << 10))
        writer.finish()

    with pytest.raises(StorageError, match="denied"):
        work()
    writer.abort()


def test_parts_that_fail_are_sent_again_each_alone(service: Service, bucket: RemoteObjects) -> None:
    data = random.Random(3).randbytes(17 * MIB)
    refused = refuse(503, "SlowDown", 2)
    service.proxy.before = lambda asked: refused(asked) if asked.is_part else None
    bucket.put("blobs/t/large", (data[at : at + MIB] for at in range(0, len(data), MIB)))
    assert sum(asked.is_part for asked in service.proxy.asked) == 5
    service.proxy.reset()
    assert bucket.get("blobs/t/large") == data


@pytest.mark.parametrize("way", ["refused", "source", "refused source"])
def test_an_upload_that_fails_leaves_nothing(service: Service, name: str, bucket: RemoteObjects, way: str) -> None:
    if "refused" in way:
        no = refuse(403, "AccessDenied", 1000)
        service.proxy.before = lambda asked: no(asked) if asked.is_part else None

    def source() -> Iterator[bytes]:
        for at in range(30):
            if at == 25 and "source" in way:
                raise KeyError("gone")
            yield bytes(MIB)

    with pytest.raises((KeyError, StorageError)):
        bucket.put("blobs/t/large", source())
    service.proxy.reset()
    assert list(bucket.list("")) == []
    assert service.unfinished(name) == []


def test_what_a_killed_process_has_begun_is_found_and_aborted(
    service: Service, name: str, bucket: RemoteObjects
) -> None:
    ours = [f"some/prefix/{kind}/t/abc" for kind in ("packs", "blobs", "checkpoints")]
    others = ["some/prefix/packs/other/abc", "packs/t/abc", "some/prefix/packs/t2/abc"]
    for key in ours + others:
        assert service.ask("POST", f"/{name}/{key}?uploads")[0] == 200
    assert bucket.clean(1_000_000) == 0  # they are younger than that
    assert len(service.unfinished(name)) == 6
    assert bucket.clean(1 << 61) == 3
    assert sorted(service.unfinished(name)) == sorted(others)


def test_the_signature_is_as_the_service_specifies_it() -> None:
    """The example "GET Bucket Lifecycle" of https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html"""
    import time

    from holdfast.store.objects._s3_uploads import S3Address, sign

    address = S3Address(
        "https://examplebucket.s3.amazonaws.com",
        "",
        "us-east-1",
        "AKIAIOSFODNN7EXAMPLE",
        "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        "",
        1.0,
    )
    moment = time.strptime("20130524T000000Z", "%Y%m%dT%H%M%SZ")
    found = sign(address, "GET", "/", {"lifecycle": ""}, moment)["authorization"]
    assert found.endswith("Signature=fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543")


# --- conditional writes and claims ---


def _wrong_refusal(asked: Asked, answer: Answer) -> Answer:
    if "if-none-match" in asked.headers and answer.status == 200:
        return Answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
    return answer


def _always_refused(asked: Asked) -> Answer | None:
    refusal = Answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
    return refusal if "if-none-match" in asked.headers else None


def _unknown(asked: Asked) -> Answer | None:
    return Answer(501, b"<Error><Code>NotImplemented</Code></Error>") if "if-none-match" in asked.headers else None


def _said_only(asked: Asked, answer: Answer) -> Answer:
    if "if-none-match" in asked.headers and answer.status == 412:
        return Answer(200, b"", (("ETag", '"x"'),))
    return answer


SERVERS = {
    "yes": "yes",
    "ignores": "no",
    "unknown": "no",
    "refuses, and yet writes": "no",
    "refuses everything": "wrong",
    "says yes, does no": "wrong",
}


def behave(service: Service, how: str) -> None:
    proxy = service.proxy
    proxy.reset()
    if how == "ignores":
        proxy.dropped = {"if-none-match"}
    elif how == "unknown":
        proxy.before = _unknown
    elif how == "refuses, and yet writes":
        proxy.dropped = {"if-none-match"}
        proxy.after = _wrong_refusal
    elif how == "refuses everything":
        proxy.before = _always_refused
    elif how == "says yes, does no":
        proxy.after = _said_only


@pytest.mark.parametrize(("how", "found"), SERVERS.items())
def test_case_7_conditional_writes_are_probed(service: Service, bucket: RemoteObjects, how: str, found: str) -> None:
    behave(service, how)
    assert bucket_probe.conditional_writes(bucket, "t", os.urandom) == found
    probed = bucket_probe.probe(bucket, "t", os.urandom)
    assert probed.ok, probed.steps
    assert probed.conditional == found
    assert list(bucket.list("")) == []


def test_who_tries_a_bucket_leaves_those_alone_who_do_so_too(
    bucket: RemoteObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.put("probe/t/another", [b"somebody is about to read this"])
    assert bucket_probe.probe(bucket, "t", os.urandom).ok
    assert [info.key for info in bucket.list("")] == ["probe/t/another"]
    monkeypatch.setattr(bucket_probe, "_LEFT_OVER", -bucket_probe._LEFT_OVER)
    assert bucket_probe.probe(bucket, "t", os.urandom).ok
    assert list(bucket.list("")) == [], "by now it was left there"


@pytest.mark.parametrize("how", some(SERVERS, 3))
def test_case_7_of_eight_stores_that_claim_at_once_one_wins(service: Service, name: str, how: str) -> None:
    behave(service, how)
    start = threading.Barrier(8)

    def claim(number: int) -> str | None:
        bucket = opened(service, name)
        conditional = bucket_probe.conditional_writes(bucket, "t", os.urandom)
        start.wait(30)
        try:
            bucket_claim.acquire(bucket, "t", bucket_claim.BucketClaim(f"{number:032x}", 7), conditional)
        except HoldfastError as error:
            assert error.code == "claimed", error.message
            return None
        return f"{number:032x}"

    with ThreadPoolExecutor(8) as pool:
        won = [found for found in pool.map(claim, range(8)) if found]
    assert len(won) == 1
    bucket = opened(service, name)
    bucket_claim.check(bucket, "t", won[0])
    bucket_claim.acquire(
        bucket, "t", bucket_claim.BucketClaim(won[0], 8), bucket_probe.conditional_writes(bucket, "t", os.urandom)
    )
    with pytest.raises(HoldfastError, match="belong to another store"):
        bucket_claim.check(bucket, "t", "f" * 32)
    assert [info.key for info in bucket.list("claims/t/")] in ([f"claims/t/{won[0]}"], ["claims/t/owner"])


def test_a_claim_made_when_the_server_had_conditional_writes_holds_when_it_has_none(
    service: Service, name: str
) -> None:
    one, other = bucket_claim.BucketClaim("1" * 32, 1), bucket_claim.BucketClaim("2" * 32, 2)
    for first, second in (("yes", "no"), ("no", "yes")):
        bucket = opened(service, service.bucket())
        bucket_claim.acquire(bucket, "t", one, first)  # type: ignore[arg-type]
        with pytest.raises(HoldfastError) as refused:
            bucket_claim.acquire(bucket, "t", other, second, sleep=lambda _: None)  # type: ignore[arg-type]
        assert refused.value.code == "claimed"
        bucket_claim.check(bucket, "t", one.store)
        bucket_claim.acquire(bucket, "t", one, second)  # type: ignore[arg-type]


def test_listings_that_lag_behind_are_waited_for_and_then_refused(service: Service, bucket: RemoteObjects) -> None:
    old: list[int] = [3]

    def lag(asked: Asked, answer: Answer) -> Answer:
        if "list-type=2" in asked.path and old[0]:
            old[0] -= 1
            return Answer(
                200, b"<?xml version='1.0'?><ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"
            )
        return answer

    service.proxy.after = lag
    waited: list[float] = []
    bucket_claim.acquire(bucket, "t", bucket_claim.BucketClaim("1" * 32, 1), "no", sleep=waited.append)
    assert len(waited) == 3
    old[0] = 1000
    with pytest.raises(StorageError, match="lag behind"):
        bucket_claim.acquire(bucket, "u", bucket_claim.BucketClaim("1" * 32, 1), "no", sleep=waited.append)


def test_i12_a_claim_that_is_none_is_refused() -> None:
    good = bucket_claim.encode(bucket_claim.BucketClaim("ab" * 16, 5))
    assert bucket_claim.decode(good) == bucket_claim.BucketClaim("ab" * 16, 5)
    assert len(good) == bucket_claim.OBJECT_BYTES
    source = random.Random(4)
    for at in range(len(good)):
        for wrong in (good[:at], good[:at] + bytes((good[at] ^ 1,)) + good[at + 1 :], source.randbytes(at)):
            with pytest.raises(IntegrityError):
                bucket_claim.decode(wrong)
    with pytest.raises(IntegrityError):
        bucket_claim.decode(good + b"x")


# --- the cache ---


class Counted:
    """A far store that counts its requests."""

    name = "memory"

    def __init__(self) -> None:
        self._bucket = open_bucket("memory://")
        self.requests = 0

    def window(self, key: str, offset: int, length: int) -> tuple[bytes, int]:
        self.requests += 1
        return self._bucket.window(key, offset, length)

    def __getattr__(self, name: str) -> object:
        return getattr(self._bucket, name)


def test_what_was_read_once_needs_no_request(tmp_path: Path) -> None:
    far = Counted()
    data = random.Random(5).randbytes(5 * BLOCK_BYTES + 17)
    far.put("packs/t/a", [data])  # type: ignore[operator]
    first, second = (CachedObjects(far, os.fsencode(tmp_path / "cache"), 64 * MIB) for _ in range(2))  # type: ignore[arg-type]
    assert first.get("packs/t/a", 10, 20) == data[10:30]
    assert first.get("packs/t/a", 0, BLOCK_BYTES) == data[:BLOCK_BYTES]
    assert far.requests == 1
    assert second.get("packs/t/a", 100, 3 * BLOCK_BYTES) == data[100 : 100 + 3 * BLOCK_BYTES]
    assert far.requests == 2
    assert second.get("packs/t/a", 5 * BLOCK_BYTES, 17) == data[-17:]
    assert first.get("packs/t/a", 5 * BLOCK_BYTES + 1, 16) == data[-16:]
    assert far.requests == 3
    for path in (tmp_path / "cache").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0
    first.put("packs/t/b", [b"small"])
    assert second.get("packs/t/b", 1, 2) == b"ma"
    assert far.requests == 3
    first.delete("packs/t/b")
    with pytest.raises(NotFoundError):
        second.get("packs/t/b", 1, 2)


def test_a_block_that_is_damaged_cut_or_swapped_is_asked_for_again(tmp_path: Path) -> None:
    far = Counted()
    one, other = random.Random(6).randbytes(3000), random.Random(7).randbytes(3000)
    for key, data in (("packs/t/a", one), ("packs/t/b", other)):
        far.put(key, [data])  # type: ignore[operator]
    cache = CachedObjects(far, os.fsencode(tmp_path / "cache"), 64 * MIB)  # type: ignore[arg-type]
    for data_key, data in (("packs/t/a", one), ("packs/t/b", other)):
        assert cache.get(data_key, 5, 10) == data[5:15]
    files = sorted(path for path in (tmp_path / "cache").rglob("*") if path.is_file())
    assert len(files) == 2
    contents = [path.read_bytes() for path in files]
    source = random.Random(8)
    for damaged in (
        [contents[1], contents[0]],
        [contents[0][:-1], contents[1] + b"x"],
        [b"", contents[1][:20]],
        *(
            [source.randbytes(50), bytes(raw[:at] + bytes((raw[at] ^ 4,)) + raw[at + 1 :])]
            for raw in contents[:1]
            for at in (0, 7, 9, 20, 40, 2000)
        ),
    ):
        for path, raw in zip(files, damaged, strict=True):
            path.write_bytes(raw)
        assert cache.get("packs/t/a", 5, 10) == one[5:15]
        assert cache.get("packs/t/b", 5, 10) == other[5:15]
    files[0].unlink()
    files[0].symlink_to("/etc/passwd")
    assert cache.get("packs/t/a", 5, 10) == one[5:15]
    assert cache.get("packs/t/b", 5, 10) == other[5:15]


def test_the_cache_has_a_limit_and_keeps_what_was_used_last(tmp_path: Path) -> None:
    far = Counted()
    now = [1_000_000.0]
    cache = CachedObjects(far, os.fsencode(tmp_path / "cache"), 8 * MIB, clock=lambda: now[0])  # type: ignore[arg-type]
    left = tmp_path / "cache" / "ab"
    left.mkdir(parents=True)
    (left / "0123.tmp").write_bytes(b"of a killed process")
    os.utime(left / "0123.tmp", (1, 1))
    for number in range(20):
        far.put(f"packs/t/{number}", [bytes((number,)) * MIB])  # type: ignore[operator]
        cache.get(f"packs/t/{number}", 0, 10)
        cache.get("packs/t/0", 0, 10)
        for path in (tmp_path / "cache").rglob("*.0"):
            if path.stat().st_mtime > 1_500_000:
                os.utime(path, (now[0], now[0]))
        now[0] += 100
    assert sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*.*")) <= 8 * MIB + 8 * MIB // 16 + MIB
    assert not (left / "0123.tmp").exists()
    before = far.requests
    cache.get("packs/t/0", 0, 10)
    cache.get("packs/t/19", 0, 10)
    assert far.requests == before
    cache.get("packs/t/2", 0, 10)
    assert far.requests == before + 1


def test_where_the_disk_refuses_there_is_no_cache(tmp_path: Path) -> None:
    far = Counted()
    far.put("packs/t/a", [b"content"])  # type: ignore[operator]
    (tmp_path / "cache").write_bytes(b"a file")
    cache = CachedObjects(far, os.fsencode(tmp_path / "cache"), 8 * MIB)  # type: ignore[arg-type]
    for _ in range(2):
        assert cache.get("packs/t/a", 0, 3) == b"con"
    assert far.requests == 2
