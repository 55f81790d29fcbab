"""Checks of what lies elsewhere: the store, the keys, the nodes of a cluster. Keys are looked for and never shown (I11)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import httpx

from cluster.s3 import S3Source
from coevo.config import RunConfig
from coevo.errors import CoevoError
from coevo.ports import BlobStore, StoreSource
from coevo.store.probe import probe_store
from coevo.store.verify import verify_run
from jobs.checks import Check, Outcome

__all__ = [
    "check_clock",
    "check_cluster",
    "check_expert_key",
    "check_jobs_server",
    "check_run",
    "check_store",
    "check_store_keys",
    "check_uploads",
]

CLOCK_WARN_S, CLOCK_FAIL_S = 60.0, 900.0
"""S3 refuses requests signed more than 15 minutes off."""

_PART_BYTES = 1 << 20


def check_store(store: BlobStore) -> Check:
    """Conditional puts hold, alone and in a race; nothing stays behind."""
    return _probed("store", store, pad_bytes=0)


def check_uploads(source: S3Source) -> Check:
    """The same for objects that go up in parts, where any do: some servers check the condition only on whole ones."""
    if source.whole_bytes >= 5 << 30:
        return Check("uploads", Outcome.SKIP, "objects go up whole on this server")
    return _probed("uploads", replace(source, multipart_bytes=_PART_BYTES).open(), pad_bytes=_PART_BYTES + 1)


def _probed(name: str, store: BlobStore, *, pad_bytes: int) -> Check:
    try:
        faults = probe_store(store, pad_bytes=pad_bytes)
    except CoevoError as error:
        return Check(name, Outcome.FAIL, f"{error.what}: {error.seen}", error.fix or "set `store` to a place that you may write to")
    if faults:
        return Check(name, Outcome.FAIL, f"{store.uri}: {'; '.join(faults)}", "use a store that honours If-None-Match and If-Match")
    return Check(name, Outcome.OK, f"{store.uri}: writable, conditional puts hold, one winner in each race")


def check_run(store: BlobStore, run: str) -> Check:
    """What the run stored holds together, as far as listings tell."""
    try:
        if store.head(f"{run}/config.json") is None:
            return Check("run", Outcome.SKIP, f"nothing stored of {run!r}")
        found = verify_run(store, run, deep=False)
    except CoevoError as error:
        return Check("run", Outcome.FAIL, f"{error.what}: {error.seen}", error.fix)
    seen = f"{run!r}: {found.manifests} manifests name {found.outputs} objects, {found.episodes} episodes"
    wrong = [*(f"missing {one}" for one in found.orphans[:3]), *(f"counts of {one}" for one in found.uncounted[:3])]
    wrong += [f"{id[:16]} played {count} times" for id, count in found.twice[:3]]
    fix = "restore what is missing, or remove the manifest that names it and run again"
    return Check("run", Outcome.OK if found.sound else Outcome.WARN, seen + (f"; {'; '.join(wrong)}" if wrong else ""), fix)


def check_clock(source: S3Source, *, now: datetime | None = None) -> Check:
    """This machine's clock against the store's."""
    try:
        theirs = source.open().server_time()
    except CoevoError as error:
        return Check("clock", Outcome.FAIL, f"{error.what}: {error.seen}", error.fix)
    if theirs is None:
        return Check("clock", Outcome.SKIP, "the store does not tell its time")
    ahead_s = ((now or datetime.now(UTC)) - theirs).total_seconds()
    outcome = Outcome.FAIL if abs(ahead_s) > CLOCK_FAIL_S else Outcome.WARN if abs(ahead_s) > CLOCK_WARN_S else Outcome.OK
    return Check("clock", outcome, f"{ahead_s:+.0f} s against the store", "set the clock (NTP)")


def check_store_keys(source: S3Source) -> Check:
    """Where boto3 finds the keys of the store."""
    found = source.open().credentials()
    fix = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile, or run on a machine with a role"
    return Check("store keys", Outcome.OK if found else Outcome.FAIL, f"found by {found}" if found else "none found", fix)


def check_expert_key(config: RunConfig) -> Check:
    """The key of a remote expert is where the config says."""
    expert = config.expert
    if expert.kind != "openai":
        return Check("expert key", Outcome.SKIP, f"expert {expert.kind!r} needs none")
    if expert.api_key_file is not None:
        there = Path(expert.api_key_file).is_file() and os.access(expert.api_key_file, os.R_OK)
        seen, fix = f"file {expert.api_key_file}", "mount the secret there, readable, on the driver and every node"
    elif expert.api_key_env is not None:
        there = bool(os.environ.get(expert.api_key_env))
        seen, fix = f"variable {expert.api_key_env}", "set it in the environment of the driver and of every node"
    else:
        return Check("expert key", Outcome.SKIP, "the endpoint wants none")
    return Check("expert key", Outcome.OK if there else Outcome.FAIL, f"{seen}: {'set' if there else 'missing or empty'}", fix)


def check_cluster(address: str, source: StoreSource) -> Iterator[Check]:
    """The cluster's port answers; its nodes run the driver's versions, tell the same time and reach the store."""
    from cluster.nodes import driver_versions, node_facts
    from cluster.session import SessionConfig, open_session

    try:
        with open_session(SessionConfig(address=address)):
            remote_store = source if isinstance(source, S3Source) else None
            nodes = node_facts(remote_store)
            ours = driver_versions()
    except CoevoError as error:
        yield Check("cluster", Outcome.FAIL, f"{error.what}: {error.seen}", error.fix)
        return
    yield Check("cluster", Outcome.OK, f"{address}: {len(nodes)} nodes alive")
    for node in nodes:
        name = f"node {node.node}"
        if node.error:
            yield Check(name, Outcome.FAIL, f"{node.host}: {node.error}", "look at the node's logs; it must run the driver's image")
            continue
        held = node.versions
        differ = [f"{what} {held.get(what, 'missing')}, here {version}" for what, version in ours.items() if held.get(what) != version]
        wrong = [*differ, *([f"clock {node.clock_s:+.0f} s"] if abs(node.clock_s) > CLOCK_WARN_S else [])]
        wrong += [f"store: {node.store_error}"] if node.store_error else []
        fine = ", ".join(f"{what} {version}" for what, version in ours.items())
        fix = "run one image on all nodes, keep clocks by NTP, give each node the store's keys"
        yield Check(name, Outcome.FAIL if wrong else Outcome.OK, f"{node.host}: {'; '.join(wrong) or fine}", fix)


def check_jobs_server(url: str) -> Check:
    """A Jobs server (`coevo submit --address http://...`) answers with a Ray version."""
    fix = "give the URL of the head's dashboard, http://HEAD:8265, and open that port to this machine"
    try:
        told = httpx.get(f"{url.rstrip('/')}/api/version", timeout=10.0)
        told.raise_for_status()
        return Check("jobs server", Outcome.OK, f"{url}: Ray {told.json()['ray_version']}")
    except (httpx.HTTPError, ValueError, KeyError) as error:
        return Check("jobs server", Outcome.FAIL, f"{url}: {type(error).__name__}: {error}", fix)
