"""What a store and a fan-out over it promise while the network and the server fail: SeaweedFS behind the fault proxy.

1. One fault of any kind costs a call nothing: it ends as if nothing had been, also where the answer of a done request is lost.
2. A torn upload leaves no visible object (R11).
3. With a fifth of the requests failing a fan-out ends with every item committed once (R3, R9).
4. An outage opens the circuit breaker, no item is lost to it, and the first answer closes it (R4).
5. An outage that lasts longer than the policy's patience leaves items owed and raises nothing (I1).
6. The driver waits an outage out, and no longer than it was told to.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cluster.fault_proxy import FaultPhase, FaultProxy, NetworkFault
from cluster.s3 import S3Source
from coevo.errors import ConfigError, StoreOutage
from coevo.fanout import FanoutPolicy, LocalExecutor
from coevo.ports import ItemState, PutResult
from coevo.stages import EchoStage
from coevo.store.patient import PatientStore
from tests.seaweed import SeaweedServer

UPLOADS = frozenset({"PUT", "POST"})
READS = frozenset({"GET"})
DATA = bytes(range(256)) * 800
OUTAGE = (NetworkFault.RESET, NetworkFault.ERROR, NetworkFault.SLOW_DOWN)
QUICK = FanoutPolicy(concurrency=16, tries=8, base_s=0.01, cap_s=0.05, breaker_pause_s=0.05)


@pytest.fixture
def proxy(seaweed: SeaweedServer) -> Iterator[FaultProxy]:
    with FaultProxy("127.0.0.1", seaweed.port, seed=7) as made:
        yield made


@pytest.fixture
def behind(seaweed: SeaweedServer, proxy: FaultProxy) -> Callable[..., tuple[S3Source, S3Source]]:
    """The same prefix through the proxy and without it."""

    def make(**settings: Any) -> tuple[S3Source, S3Source]:
        from dataclasses import replace

        faulty = seaweed.source(endpoint=proxy.endpoint, **settings)
        return faulty, replace(faulty, endpoint=seaweed.endpoint)

    return make


Sources = Callable[..., tuple[S3Source, S3Source]]


def one(*kinds: NetworkFault, methods: frozenset[str] = frozenset(), times: int = 1) -> list[FaultPhase]:
    return [FaultPhase(kinds=kinds, methods=methods, at_most=times)]


@pytest.mark.parametrize("kind", list(NetworkFault))
def test_one_fault_costs_a_call_nothing(proxy: FaultProxy, behind: Sources, kind: NetworkFault) -> None:
    """R11: a commit, a pointer and a read, each with one fault in its way."""
    faulty, direct = behind()
    store = faulty.open()
    proxy.schedule(one(kind, methods=UPLOADS))
    assert store.put_if_absent("a", DATA) in {PutResult.WRITTEN, PutResult.SAME}
    proxy.schedule(one(kind, methods=UPLOADS))
    first = store.put_if_match("pointer", b"1" * 1000, etag=None)
    assert first is not None
    proxy.schedule(one(kind, methods=UPLOADS))
    assert store.put_if_match("pointer", b"2" * 1000, etag=first) is not None
    proxy.schedule(one(kind, methods=READS))
    assert store.get("a") == DATA
    assert proxy.counts[kind] == 4
    assert [info.key for info in direct.open().list("")] == ["a", "pointer"]
    assert direct.open().get("pointer") == b"2" * 1000


@pytest.mark.parametrize("parts", [False, True])
def test_a_torn_upload_leaves_no_visible_object(proxy: FaultProxy, behind: Sources, parts: bool) -> None:
    """R11: whole and in parts; the next try finds the key free."""
    faulty, direct = behind(attempts=1, **({"multipart_bytes": 100_000} if parts else {}))
    store = faulty.open()
    proxy.schedule([FaultPhase(kinds=(NetworkFault.TORN_UPLOAD,), methods=frozenset({"PUT"}), at_most=1)])
    with pytest.raises(StoreOutage):
        store.put_if_absent("a", DATA)
    assert proxy.counts[NetworkFault.TORN_UPLOAD] == 1
    assert list(direct.open().list("")) == []
    assert direct.open().head("a") is None
    assert store.put_if_absent("a", DATA) is PutResult.WRITTEN
    assert direct.open().get("a") == DATA


def test_a_lost_answer_is_found_by_the_next_try(proxy: FaultProxy, behind: Sources) -> None:
    """I4: our own bytes under the key are success, another's are not."""
    faulty, direct = behind(attempts=1)
    store = faulty.open()
    proxy.schedule(one(NetworkFault.LOST_ANSWER, methods=UPLOADS))
    with pytest.raises(StoreOutage):
        store.put_if_absent("a", DATA)
    assert direct.open().get("a") == DATA
    assert store.put_if_absent("a", DATA) is PutResult.SAME
    assert store.put_if_absent("a", b"other") is PutResult.CONFLICT


def test_a_stale_pointer_stays_lost_after_a_retry(proxy: FaultProxy, behind: Sources) -> None:
    """A retried move is not taken for done when another's bytes are there."""
    faulty, direct = behind()
    first = direct.open().put_if_match("pointer", b"1", etag=None)
    assert direct.open().put_if_match("pointer", b"2", etag=first) is not None
    proxy.schedule(one(NetworkFault.ERROR, methods=UPLOADS))
    assert faulty.open().put_if_match("pointer", b"3", etag=first) is None
    assert proxy.counts[NetworkFault.ERROR] == 1
    assert direct.open().get("pointer") == b"2"


def test_a_fifth_of_the_requests_failing_costs_no_item(proxy: FaultProxy, behind: Sources) -> None:
    """R3, R9: without any retry of the SDK, the items' own tries carry them through all kinds of faults."""
    faulty, direct = behind(attempts=1)
    proxy.schedule([FaultPhase(kinds=tuple(NetworkFault), rate=0.2, delay_s=0.02)])
    items = [f"i{number:03d}" for number in range(150)]
    executor = LocalExecutor(QUICK)
    try:
        report = executor.map(EchoStage(store=faulty), items)
    finally:
        executor.close()
    assert report.owed == ()
    assert sum(outcome.attempts for outcome in report.outcomes) > len(items)
    assert sum(proxy.counts[kind] for kind in NetworkFault) > 20
    assert [info.key for info in direct.open().list("echo/episodes/")] == [f"echo/episodes/{item}.json" for item in items]


@contextmanager
def breaker_events(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[str], None]]:
    """Waits until the breaker has said a word."""

    def wait(word: str) -> None:
        deadline = time.monotonic() + 60
        while not any(f"breaker {word}" in record.getMessage() for record in caplog.records):
            assert time.monotonic() < deadline, f"the breaker was never {word}"
            time.sleep(0.01)

    with caplog.at_level(logging.WARNING, logger="coevo.limits"):
        yield wait


def test_an_outage_opens_the_breaker_and_its_end_closes_it(proxy: FaultProxy, behind: Sources, caplog: pytest.LogCaptureFixture) -> None:
    """R4: during the outage no item burns its tries; afterwards all are committed."""
    faulty, direct = behind(attempts=1)
    items = [f"i{number:03d}" for number in range(60)]
    executor = LocalExecutor(QUICK)
    proxy.schedule([FaultPhase(kinds=OUTAGE)])
    reports = []
    try:
        with breaker_events(caplog) as wait:
            job = threading.Thread(target=lambda: reports.append(executor.map(EchoStage(store=faulty), items)))
            job.start()
            wait("open")
            proxy.schedule([])
            wait("closed")
            job.join(timeout=60)
    finally:
        executor.close()
    assert reports[0].owed == ()
    assert {outcome.state for outcome in reports[0].outcomes} == {ItemState.COMMITTED}
    assert len(list(direct.open().list("echo/episodes/"))) == len(items)


def test_a_permanent_outage_leaves_items_owed(proxy: FaultProxy, behind: Sources) -> None:
    """I1, R4: no exception leaves the map; the listing names what is owed and why."""
    faulty, _ = behind(attempts=1)
    policy = FanoutPolicy(concurrency=4, tries=2, base_s=0.01, breaker_errors=3, breaker_pause_s=0.02, breaker_patience_s=0.3)
    proxy.schedule([FaultPhase(kinds=OUTAGE)])
    executor = LocalExecutor(policy)
    try:
        report = executor.map(EchoStage(store=faulty), [f"i{number}" for number in range(12)])
    finally:
        executor.close()
    assert len(report.owed) == 12
    listing = report.owed_listing(shown=2)
    assert listing.startswith("12 of 12 owed: i0 (")
    assert "and 10 more" in listing
    assert "the store" in report.owed[0].error


def test_the_driver_waits_an_outage_out(proxy: FaultProxy, behind: Sources) -> None:
    """R11: patience bridges it, a lost answer included; without patience it is raised."""
    faulty, direct = behind(attempts=1)
    store = PatientStore(faulty.open(), patience_s=60.0, pause_s=0.05)
    proxy.schedule(one(NetworkFault.LOST_ANSWER, methods=UPLOADS))
    etag = store.put_if_match("pointer", b"1", etag=None)
    assert etag is not None, "the second try finds its own bytes"
    proxy.schedule(one(*OUTAGE, times=3))
    assert store.put_if_match("pointer", b"2", etag=etag) is not None
    proxy.schedule(one(*OUTAGE, times=3))
    assert [info.key for info in store.list("")] == ["pointer"]
    assert store.put_if_match("pointer", b"3", etag=etag) is None
    assert direct.open().get("pointer") == b"2"
    proxy.schedule([FaultPhase(kinds=OUTAGE)])
    with pytest.raises(StoreOutage):
        PatientStore(faulty.open(), patience_s=0.2, pause_s=0.05).get("pointer")


def test_a_schedule_is_a_function_of_its_seed(seaweed: SeaweedServer) -> None:
    def struck(seed: int) -> int:
        phase = FaultPhase(kinds=(NetworkFault.ERROR,), rate=0.3)
        with FaultProxy("127.0.0.1", seaweed.port, phases=(phase,), seed=seed) as proxy:
            store = seaweed.source(endpoint=proxy.endpoint, attempts=1).open()
            hits = 0
            for number in range(20):
                try:
                    store.head(f"k{number}")
                except StoreOutage:
                    hits += 1 << number
            return hits

    assert struck(1) == struck(1)
    assert struck(1) != struck(2)


def test_impossible_phases_are_refused() -> None:
    for settings in ({"kinds": ()}, {"kinds": OUTAGE, "rate": 0.0}, {"kinds": OUTAGE, "start_s": 5.0, "stop_s": 5.0}):
        with pytest.raises(ConfigError, match="can't happen"):
            FaultPhase(**settings)  # type: ignore[arg-type]
