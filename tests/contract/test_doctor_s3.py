"""What `coevo doctor` says about a bucket on a real server, and about servers that are not fit to commit to."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from pytest_httpserver import HTTPServer

from cluster.s3 import S3Source, S3Store
from coevo.config import RunConfig
from coevo.display import DisplayKind, open_display
from coevo.store.probe import PROBE_PREFIX
from jobs.checks import Outcome
from jobs.checks_remote import check_clock, check_jobs_server, check_store, check_store_keys, check_uploads
from jobs.doctor import examine
from tests.seaweed import KEYS, SeaweedServer


class Unconditional(S3Store):
    """A client that loses the conditions on its way: to us the server then looks like one that ignores them."""

    def __init__(self, source: S3Source) -> None:
        import boto3

        super().__init__(source)
        self._client = boto3.client("s3", endpoint_url=source.endpoint, region_name="us-east-1")
        self._client.meta.events.register("before-call.s3", self._strip)

    @staticmethod
    def _strip(params: dict[str, dict[str, str]], **_: object) -> None:
        for name in ("If-None-Match", "If-Match"):
            params["headers"].pop(name, None)


def test_a_good_bucket_passes_and_stays_clean(seaweed: SeaweedServer, capsys: pytest.CaptureFixture[str]) -> None:
    source = seaweed.source()
    examine(RunConfig(name="doctor"), open_display(DisplayKind.PLAIN), store=source.uri)
    told = capsys.readouterr().out
    for line in ("ok    store keys    found by env", "ok    clock", "ok    store ", "skip  uploads"):
        assert line in told
    for secret in (KEYS["AWS_ACCESS_KEY_ID"], KEYS["AWS_SECRET_ACCESS_KEY"]):
        assert secret not in told
    store = source.open()
    assert list(store.list(f"{PROBE_PREFIX}/")) == []
    assert store.leftovers(older_than_s=-10) == []


def test_a_server_that_ignores_conditions_fails(seaweed: SeaweedServer) -> None:
    """Two drivers would overwrite one another there without a word."""
    store = Unconditional(seaweed.source())
    check = check_store(store)
    assert check.outcome is Outcome.FAIL
    assert "If-None-Match is not honoured: puts of a, a, b to one key gave written, written, written" in check.seen
    assert "8 of 8 racing writers were told that they created the object" in check.seen
    assert "honours If-None-Match" in check.fix
    assert list(store.list("")) == []


def test_a_clock_that_is_off_and_a_store_that_is_gone(seaweed: SeaweedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    source = seaweed.source(attempts=1)
    assert check_clock(source).outcome is Outcome.OK
    assert check_clock(source, now=datetime.now(UTC) + timedelta(minutes=5)).outcome is Outcome.WARN
    ahead = check_clock(source, now=datetime.now(UTC) + timedelta(minutes=20))
    assert ahead.outcome is Outcome.FAIL
    assert "+1200 s" in ahead.seen or "+1199 s" in ahead.seen or "+1201 s" in ahead.seen
    gone = replace(source, endpoint="http://127.0.0.1:9")
    for check in (check_clock(gone), check_store(gone.open()), check_uploads(replace(gone, multipart_bytes=1))):
        assert check.outcome is Outcome.FAIL
        assert "does not answer" in check.seen
        assert check.fix
    for name in KEYS:
        if name != "AWS_EC2_METADATA_DISABLED":
            monkeypatch.delenv(name)
    assert check_store_keys(source).outcome is Outcome.FAIL


def test_a_jobs_server_is_asked_for_its_version(httpserver: HTTPServer) -> None:
    httpserver.expect_request("/api/version").respond_with_json({"ray_version": "2.60.0"})
    url = httpserver.url_for("/")
    assert check_jobs_server(url).seen == f"{url}: Ray 2.60.0"
    httpserver.clear()
    httpserver.expect_request("/api/version").respond_with_data("a login page")
    for bad in (url, "http://127.0.0.1:9"):
        check = check_jobs_server(bad)
        assert check.outcome is Outcome.FAIL
        assert "8265" in check.fix
