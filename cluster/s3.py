"""Amazon S3 and compatible servers as object store, through boto3.

Every commit is one conditional request: `If-None-Match: *` creates, `If-Match` moves a pointer. On Amazon's servers objects above 64 MiB go
up in parts and become visible with the last request, which carries the condition; a killed writer leaves parts that `sweep` removes. Other
servers get objects whole as long as S3 allows: SeaweedFS 4.48 checks the condition of a finished upload in parts without a lock (2 and 3
winners of 8 were seen), that of a whole object with one.
The SDK owns the retries of calls (`attempts`); on top of it only what it can't know is retried here: a body that broke off while it was
read, and a write that the server refused because another of the same key was under way (409).

A put whose answer was lost is sent again by the SDK and refused (412), because our own bytes are there already: for `put_if_absent` that is
SAME, for `put_if_match` success. Limit: a pointer that another writer moved to exactly the same bytes in between counts as moved by us.

Keys come from the environment or another source of boto3's chain (profile, role of the machine), never from a URI or a pickled source.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple, Self

import tenacity

from cluster.s3_errors import code_of, status_of, translated, was_retried
from coevo.errors import CoevoError, StoreError, StoreOutage
from coevo.ports import BlobInfo, PutResult
from coevo.store.keys import check_key, check_prefix, join
from coevo.store.uri import BucketUri

__all__ = ["S3Source", "S3Store"]

log = logging.getLogger(__name__)

_PART_BYTES = 16 << 20
_PART_THREADS = 4
_READ_TRIES = 4
_ABSENT_TRIES = 3  # the object that stood in the way may be deleted meanwhile
_CONFLICT_TRIES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Source:
    """Picklable recipe of an `S3Store`: crosses Ray; `open()` runs in the worker and finds its keys there.

    Attributes:
        bucket: Must exist.
        prefix: Common start of all keys, without `/` at its ends; may be empty.
        endpoint: `http://host:port` or `https://...` of a compatible server; empty for Amazon's.
        region: Empty takes the one of the environment, else us-east-1.
        pool: Connections of one process.
        connect_timeout_s: Seconds until a connection must stand.
        read_timeout_s: Longest silence of the server, in seconds.
        attempts: Times that the SDK sends a request, with its own backoff.
        multipart_bytes: Larger objects go up in parts; 0 is 64 MiB on Amazon's servers and 5 GiB, the limit of one request, elsewhere.
    """

    bucket: str
    prefix: str = ""
    endpoint: str = ""
    region: str = ""
    pool: int = 64
    connect_timeout_s: float = 5.0
    read_timeout_s: float = 30.0
    attempts: int = 5
    multipart_bytes: int = 0

    @classmethod
    def parse(cls, uri: str) -> Self:
        """From `s3://bucket/prefix?endpoint=...&region=...`; the other attributes can be given in the same way.

        Raises:
            ConfigError: No legal bucket or prefix, an unknown or unreadable setting, or keys in the URI.
        """
        parts = BucketUri.parse(uri, settings=_SETTINGS)
        return cls(bucket=parts.bucket, prefix=parts.prefix, **parts.settings)

    @property
    def uri(self) -> str:
        """What `parse` reads; settings at their defaults are left out."""
        settings = {name: value for name, value in asdict(self).items() if name in _SETTINGS and value != _DEFAULTS[name]}
        return str(BucketUri(self.bucket, self.prefix, settings))

    @property
    def whole_bytes(self) -> int:
        """Largest object that goes up in one request."""
        return self.multipart_bytes or (5 << 30 if self.endpoint else 64 << 20)

    def open(self) -> S3Store:
        """Connect on first use; nothing is sent now."""
        return S3Store(self)

    def filesystem(self) -> Any:
        """A `pyarrow.fs.S3FileSystem` for scans and Ray Train's storage; paths in it are those of `path`. Holds no keys when pickled."""
        from pyarrow.fs import S3FileSystem

        scheme, _, host = self.endpoint.rpartition("://")
        place = {"endpoint_override": host, "scheme": scheme or "https"} if self.endpoint else {}
        return S3FileSystem(
            region=self.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1",
            connect_timeout=self.connect_timeout_s,
            request_timeout=self.read_timeout_s,
            **place,
        )

    def path(self, key: str) -> str:
        """`bucket/prefix/key`, as pyarrow names it."""
        return join(self.bucket, self.prefix, key)


_DEFAULTS: dict[str, Any] = {
    name: field.default for name, field in S3Source.__dataclass_fields__.items() if name not in {"bucket", "prefix"}
}
_SETTINGS: Mapping[str, type] = {name: type(default) for name, default in _DEFAULTS.items()}


@functools.lru_cache(maxsize=8)
def _client(source: S3Source, process: int) -> Any:
    """One client (thread-safe) and one connection pool per server and process: `process` keeps forks apart."""
    import boto3
    from botocore.config import Config

    session = boto3.session.Session()
    config = Config(
        connect_timeout=source.connect_timeout_s,
        read_timeout=source.read_timeout_s,
        max_pool_connections=source.pool,
        retries={"mode": "standard", "total_max_attempts": source.attempts},
        tcp_keepalive=True,
        s3={"addressing_style": "path" if source.endpoint else "auto"},
    )
    place = {"endpoint_url": source.endpoint} if source.endpoint else {}
    return session.client("s3", region_name=source.region or session.region_name or "us-east-1", config=config, **place)


class _BrokenBody(StoreOutage):
    """The SDK retries requests, not the reading of their bodies."""


class _Put(NamedTuple):
    """Answer to a conditional write: `etag` None when the condition did not hold; `retried` when the SDK had sent it before."""

    etag: str | None
    retried: bool = False


class S3Store:
    """`coevo.ports.BlobStore` over a bucket. Safe to share among threads; any number of processes and machines may open the same one.

    Args:
        source: Where it is.
    """

    def __init__(self, source: S3Source) -> None:
        self._source = source
        self._client = _client(source, os.getpid())

    @property
    def uri(self) -> str:
        """See `S3Source.uri`."""
        return self._source.uri

    def get(self, key: str) -> bytes:
        """The object's bytes. Raises `StoreError` for a missing key."""
        data = self._read(check_key(key))
        if data is None:
            fix = "list the folder above it, or re-run the stage that writes it"
            raise StoreError("no such object", seen=f"{key} in {self.uri}", fix=fix)
        return data

    def head(self, key: str) -> BlobInfo | None:
        """Size, ETag and age, or None for a missing key."""
        from botocore.exceptions import ClientError

        with self._errors(check_key(key)):
            try:
                answer = self._client.head_object(Bucket=self._source.bucket, Key=self._full(key))
            except ClientError as error:
                if status_of(error) == 404:
                    return None
                raise
        return BlobInfo(key, answer["ContentLength"], answer["ETag"].strip('"'), _seconds(answer["LastModified"]))

    def put_if_absent(self, key: str, data: bytes) -> PutResult:
        """Commit `data` under `key` unless something is there: one winner, SAME for equal bytes, CONFLICT changes nothing."""
        for _ in range(_ABSENT_TRIES):
            if self._put(check_key(key), data, {"IfNoneMatch": "*"}).etag is not None:
                return PutResult.WRITTEN
            if self._etag_of(key, data) is not None:
                return PutResult.SAME
            if self.head(key) is not None:
                return PutResult.CONFLICT
        fix = "give the object a name of its own: on this server a key can't also be the folder of another key"
        raise StoreError("the store refuses a key under which nothing is", seen=f"{key} in {self.uri}", fix=fix)

    def put_if_match(self, key: str, data: bytes, *, etag: str | None) -> str | None:
        """Create (`etag` None) or replace exactly that version; the new ETag, or None when another writer was first."""
        condition = {"IfNoneMatch": "*"} if etag is None else {"IfMatch": f'"{etag}"'}
        put = self._put(check_key(key), data, condition)
        return self._etag_of(key, data) if put.etag is None and put.retried else put.etag

    def list(self, prefix: str) -> Iterator[BlobInfo]:
        """Objects whose key starts with the string `prefix`, sorted by the key's bytes.

        The whole listing is held: servers that keep folders order it in another way than Amazon's.
        """
        start = f"{self._source.prefix}/{check_prefix(prefix)}" if self._source.prefix else check_prefix(prefix)
        return iter(sorted(self._listed(start), key=lambda info: info.key.encode()))

    def delete(self, key: str) -> None:
        """Remove the object; a missing key is no error."""
        with self._errors(check_key(key)):
            self._client.delete_object(Bucket=self._source.bucket, Key=self._full(key))

    def leftovers(self, *, older_than_s: float) -> Sequence[str]:
        """Unfinished uploads that began more than `older_than_s` seconds ago, as `key?uploadId=...`."""
        return [f"{upload['Key']}?uploadId={upload['UploadId']}" for upload in self._uploads(older_than_s)]

    def sweep(self, *, older_than_s: float = 86_400.0) -> int:
        """Abort unfinished uploads of killed writers, if older than `older_than_s` seconds; the number aborted."""
        uploads = list(self._uploads(older_than_s))
        for upload in uploads:
            self._abort(upload["Key"], upload["UploadId"])
        return len(uploads)

    def server_time(self) -> datetime | None:
        """The server's clock (Date header), or None when it does not tell. Raises `StoreError` as any call does."""
        from email.utils import parsedate_to_datetime

        with self._errors(""):
            answer = self._client.head_bucket(Bucket=self._source.bucket)
        date = answer["ResponseMetadata"]["HTTPHeaders"].get("date", "")
        return parsedate_to_datetime(date).astimezone(UTC) if date else None

    def credentials(self) -> str:
        """How the keys were found (`env`, `shared-credentials-file`, `iam-role`...); empty when there are none. Never the keys."""
        import boto3
        from botocore.exceptions import BotoCoreError

        try:
            found = boto3.session.Session().get_credentials()
        except BotoCoreError:
            return ""
        return "" if found is None else str(found.method)

    def _full(self, key: str) -> str:
        return join(self._source.prefix, key)

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        """Turn what the client raises into errors of ours."""
        from botocore.exceptions import BotoCoreError, ClientError
        from urllib3.exceptions import HTTPError

        try:
            yield
        except CoevoError:
            raise
        except (BotoCoreError, ClientError, HTTPError, OSError) as error:
            raise translated(error, where=f"{key or '(bucket)'} in {self.uri}") from error

    def _read(self, key: str) -> bytes | None:
        again = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(_BrokenBody),
            stop=tenacity.stop_after_attempt(_READ_TRIES),
            wait=tenacity.wait_random_exponential(0.05, max=1.0),
            before_sleep=lambda state: log.info("reading %s broke off (try %d)", key, state.attempt_number),
            reraise=True,
        )
        with self._errors(key):
            data: bytes | None = again(self._fetch, key)
            return data

    def _fetch(self, key: str) -> bytes | None:
        from botocore.exceptions import BotoCoreError, ClientError
        from urllib3.exceptions import HTTPError

        try:
            answer = self._client.get_object(Bucket=self._source.bucket, Key=self._full(key))
        except ClientError as error:
            if code_of(error) == "NoSuchKey":
                return None
            raise
        try:
            data: bytes = answer["Body"].read()
        except (BotoCoreError, HTTPError, OSError) as error:
            seen = f"{key} in {self.uri}: {type(error).__name__}: {error}"
            raise _BrokenBody("the store broke off an answer", seen=seen, fix="the same command again resumes") from error
        return data

    def _etag_of(self, key: str, data: bytes) -> str | None:
        """The ETag under `key` if exactly `data` is there."""
        info = self.head(key)
        if info is None or info.size_bytes != len(data) or self._read(key) != data:
            return None
        return info.etag

    def _put(self, key: str, data: bytes, condition: Mapping[str, str]) -> _Put:
        busy = tenacity.Retrying(
            retry=tenacity.retry_if_exception(_is_conflict),
            stop=tenacity.stop_after_attempt(_CONFLICT_TRIES),
            wait=tenacity.wait_random_exponential(0.05, max=2.0),
            before_sleep=lambda state: log.info("another write of %s is under way (try %d)", key, state.attempt_number),
            reraise=True,
        )
        write = self._put_parts if len(data) > self._source.whole_bytes else self._put_whole
        with self._errors(key):
            put: _Put = busy(write, self._full(key), data, condition)
            return put

    def _put_whole(self, key: str, data: bytes, condition: Mapping[str, str]) -> _Put:
        from botocore.exceptions import ClientError

        try:
            answer = self._client.put_object(Bucket=self._source.bucket, Key=key, Body=data, **condition)
        except ClientError as error:
            return _refused(error)
        return _Put(answer["ETag"].strip('"'))

    def _put_parts(self, key: str, data: bytes, condition: Mapping[str, str]) -> _Put:
        from botocore.exceptions import ClientError

        place = {"Bucket": self._source.bucket, "Key": key}
        upload = self._client.create_multipart_upload(**place)["UploadId"]
        try:
            parts = self._send_parts(place, upload, data)
            answer = self._client.complete_multipart_upload(**place, UploadId=upload, MultipartUpload={"Parts": parts}, **condition)
            return _Put(answer["ETag"].strip('"'))
        except BaseException as error:
            self._abort(key, upload)
            if isinstance(error, ClientError):
                return _refused(error)
            raise

    def _send_parts(self, place: Mapping[str, str], upload: str, data: bytes) -> Sequence[dict[str, Any]]:
        def send(number: int) -> dict[str, Any]:
            start = (number - 1) * _PART_BYTES
            answer = self._client.upload_part(**place, UploadId=upload, PartNumber=number, Body=data[start : start + _PART_BYTES])
            return {"PartNumber": number, "ETag": answer["ETag"]}

        with ThreadPoolExecutor(_PART_THREADS) as threads:
            return list(threads.map(send, range(1, -(-len(data) // _PART_BYTES) + 1)))

    def _abort(self, key: str, upload: str) -> None:
        from botocore.exceptions import BotoCoreError, ClientError

        with suppress(BotoCoreError, ClientError):  # what stays is swept later
            self._client.abort_multipart_upload(Bucket=self._source.bucket, Key=key, UploadId=upload)

    def _listed(self, start: str) -> Iterator[BlobInfo]:
        cut = len(self._source.prefix) + 1 if self._source.prefix else 0
        with self._errors(start):
            for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=self._source.bucket, Prefix=start):
                for entry in page.get("Contents", ()):
                    key = entry["Key"][cut:]
                    if _is_object(key):
                        yield BlobInfo(key, entry["Size"], entry["ETag"].strip('"'), _seconds(entry["LastModified"]))

    def _uploads(self, older_than_s: float) -> Iterator[dict[str, Any]]:
        start = f"{self._source.prefix}/" if self._source.prefix else ""
        now = datetime.now(UTC)
        with self._errors(start):
            for page in self._client.get_paginator("list_multipart_uploads").paginate(Bucket=self._source.bucket, Prefix=start):
                for upload in page.get("Uploads", ()):
                    if (now - upload["Initiated"]).total_seconds() > older_than_s:
                        yield upload


def _seconds(moment: datetime) -> float:
    """Unix time in whole seconds: servers tell more in a listing than in a HEAD."""
    return float(int(moment.timestamp()))


def _is_object(key: str) -> bool:
    """False for the folder marks that other tools leave (`name/`)."""
    try:
        check_key(key)
    except StoreError:
        return False
    return True


def _is_conflict(error: BaseException) -> bool:
    from botocore.exceptions import ClientError

    return isinstance(error, ClientError) and code_of(error) in {"ConditionalRequestConflict", "OperationAborted"}


def _refused(error: Any) -> _Put:
    """A write whose condition did not hold; re-raises anything else."""
    gone = code_of(error) in {"NoSuchKey", "NoSuchUpload"} and (code_of(error) == "NoSuchKey" or was_retried(error))
    if status_of(error) == 412 or gone:
        return _Put(None, was_retried(error))
    raise error
