"""What S3 servers and their client say, in our own words: an outage to wait out, or something that the user must mend.

Codes from the S3 API reference (error responses) and from what SeaweedFS answers.
"""

from __future__ import annotations

from typing import Any

from coevo.errors import CoevoError, PrerequisiteError, StoreError, StoreOutage

__all__ = ["code_of", "status_of", "translated", "was_retried"]

_BUSY_CODES = frozenset(
    {
        "503",
        "500",
        "502",
        "504",
        "BandwidthLimitExceeded",
        "ConditionalRequestConflict",
        "InternalError",
        "OperationAborted",
        "RequestLimitExceeded",
        "RequestTimeout",
        "ServiceUnavailable",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
    }
)
_CREDENTIAL_CODES = frozenset({"AccessDenied", "AllAccessDisabled", "InvalidAccessKeyId", "SignatureDoesNotMatch", "401", "403"})
_EXPIRED_CODES = frozenset({"ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired"})
_REGION_CODES = frozenset({"301", "307", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect"})
_DAMAGED_CODES = frozenset({"BadDigest", "IncompleteBody", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch"})

_KEYS_FIX = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or a profile, or a role of the machine) in the environment of the driver and of "
    "every node, with rights on this bucket"
)


def code_of(error: Any) -> str:
    """The server's error code; the HTTP status as text where the answer had no body (HEAD)."""
    return str(error.response.get("Error", {}).get("Code", ""))


def status_of(error: Any) -> int:
    """HTTP status of a `ClientError`; 0 when unknown."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def was_retried(error: Any) -> bool:
    """Whether the client had sent the request before: the refusal may then be about our own earlier try."""
    return int(error.response.get("ResponseMetadata", {}).get("RetryAttempts", 0)) > 0


def translated(error: BaseException, *, where: str) -> CoevoError:
    """The error to raise for one that the client raised.

    Args:
        error: A botocore or urllib3 exception.
        where: The object, with its bucket and endpoint.

    Returns:
        `StoreOutage` for what passes by itself, `PrerequisiteError` for missing credentials, else `StoreError`.
    """
    from botocore.exceptions import ClientError, NoCredentialsError, PartialCredentialsError

    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return PrerequisiteError("no credentials for the store were found", seen=f"{where}: {error}", fix=_KEYS_FIX)
    if not isinstance(error, ClientError):
        seen = f"{where}: {type(error).__name__}: {error}"
        return StoreOutage("the store does not answer", seen=seen, fix="check the endpoint and the network; the same command again resumes")
    return _refusal(code_of(error), status_of(error), f"{where}: {error}")


def _refusal(code: str, status: int, seen: str) -> StoreError:
    if code == "RequestTimeTooSkewed":
        return StoreError("the clock of this machine and the store's differ too much", seen=seen, fix="set the clock (NTP)")
    if code == "NoSuchBucket":
        return StoreError("the bucket does not exist", seen=seen, fix="create it, or mend the name in the store's URI")
    if code in _CREDENTIAL_CODES:
        return StoreError("the store refuses these credentials", seen=seen, fix=_KEYS_FIX)
    if code in _EXPIRED_CODES:
        return StoreError("the credentials have expired", seen=seen, fix="renew them; roles of the machine renew themselves")
    if code in _REGION_CODES:
        return StoreError("the bucket lies in another region", seen=seen, fix="add ?region=REGION to the store's URI")
    if code == "NotImplemented":
        return StoreError("the store can't do conditional puts", seen=seen, fix="use a server that honours If-None-Match and If-Match")
    if code in _BUSY_CODES or code in _DAMAGED_CODES or status >= 500 or status == 429:
        return StoreOutage("the store is out or overloaded", seen=seen, fix="wait; the same command again resumes")
    return StoreError("the store refused", seen=seen, fix="see the code; `coevo doctor --store URI` tries all operations")
