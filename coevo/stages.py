"""The echo stage: commits a tiny record per item. `coevo doctor`, tests and benchmarks run it to exercise executors and stores.

Its faults are a pure function of item and attempt number, so every failure can be repeated.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from coevo.errors import InfraError
from coevo.identity import canonical_json
from coevo.ports import BlobStore, PutResult, Skipped, StoreSource
from coevo.records import Attempt
from coevo.store.threads import beside

__all__ = ["EchoStage", "EchoWorker", "Fault", "FaultKind"]


class FaultKind(StrEnum):
    """What goes wrong with an attempt."""

    INFRA = "infra"
    """`InfraError`: retried."""
    BUG = "bug"
    """An exception of the stage's own code."""
    TASK_FAILURE = "task_failure"
    """A committed record that says failure: never retried."""
    HANG = "hang"
    """Waits for ever, in small awaits that each end."""
    STUBBORN = "stubborn"
    """Waits for ever and ignores cancellation."""
    CANCEL = "cancel"
    """A `CancelledError` from inside, as a client library's cancelled scope gives."""
    EXIT = "exit"
    """`sys.exit` in stage code."""
    KILL_WORKER = "kill_worker"
    """SIGKILL to the worker's own process. Only for executors with worker processes."""
    BLOCK = "block"
    """Stops the whole process (SIGSTOP): heartbeats cease. Only for executors with worker processes."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of the first `attempts` attempts at each of `items`."""

    kind: FaultKind
    items: frozenset[str]
    attempts: int = sys.maxsize


@dataclass(frozen=True, slots=True)
class EchoStage:
    """Picklable description of the stage.

    Attributes:
        store: Where records go; None commits nothing.
        prefix: Key prefix of the records.
        sleep_s: Seconds each attempt waits, as a model call would.
        faults: What goes wrong.
        outage_key: While the store holds this key, every attempt is an `InfraError`; empty for never.
        record_attempts: Write `PREFIX/attempts/ITEM/N` when an attempt starts.
    """

    store: StoreSource | None = None
    prefix: str = "echo"
    sleep_s: float = 0.0
    faults: tuple[Fault, ...] = ()
    outage_key: str = ""
    record_attempts: bool = False

    @property
    def name(self) -> str:
        """For displays."""
        return "echo"

    def open(self) -> EchoWorker:
        """Build the store client in the worker."""
        return EchoWorker(self, self.store.open() if self.store is not None else None)


class EchoWorker:
    """The opened echo stage."""

    def __init__(self, stage: EchoStage, store: BlobStore | None) -> None:
        self._stage = stage
        self._store = store
        self._faults = {item: fault for fault in stage.faults for item in fault.items}

    async def run(self, item: str, attempt: int) -> Any:
        """Commit `PREFIX/episodes/ITEM.json`; the note holds the length of the item as `tokens`."""
        store, stage = self._store, self._stage
        if store is not None and stage.record_attempts:
            await beside(store, self._record_attempt, store, item, attempt)
        if store is not None and stage.outage_key and await beside(store, store.head, stage.outage_key) is not None:
            raise InfraError("the backend is out", seen=stage.outage_key, fix="delete the key")
        if stage.sleep_s > 0:
            await asyncio.sleep(stage.sleep_s)
        fault = self._faults.get(item)
        failed = fault is not None and attempt <= fault.attempts and await _strike(fault.kind, item)
        note = {"tokens": len(item), "success": not failed}
        if store is None:
            return note
        data = canonical_json({"item": item, **note})
        put = await beside(store, store.put_if_absent, f"{stage.prefix}/episodes/{item}.json", data)
        return note if put is PutResult.WRITTEN else Skipped(note)

    def _record_attempt(self, store: BlobStore, item: str, attempt: int) -> None:
        record = Attempt(id=item, number=attempt, outcome="started", worker=f"{socket.gethostname()}:{os.getpid()}")
        store.put_if_absent(f"{self._stage.prefix}/attempts/{item}/{attempt}", record.to_bytes())

    async def aclose(self) -> None:
        """Nothing to close."""


async def _strike(kind: FaultKind, item: str) -> bool:
    """Let a fault happen; True for the one that is a record."""
    match kind:
        case FaultKind.TASK_FAILURE:
            return True
        case FaultKind.INFRA:
            raise InfraError("injected infrastructure error", seen=item)
        case FaultKind.BUG:
            raise ValueError(f"injected bug at {item}")
        case FaultKind.CANCEL:
            raise asyncio.CancelledError
        case FaultKind.EXIT:
            sys.exit(3)
        case FaultKind.KILL_WORKER | FaultKind.BLOCK:
            os.kill(os.getpid(), signal.SIGKILL if kind is FaultKind.KILL_WORKER else signal.SIGSTOP)
        case FaultKind.HANG | FaultKind.STUBBORN:
            await _hang(stubborn=kind is FaultKind.STUBBORN)
    return False


async def _hang(*, stubborn: bool) -> None:
    while True:
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            if not stubborn:
                raise
