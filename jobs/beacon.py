"""What a running job says of itself in the store, so that `coevo status` can tell it from anywhere.

One small object per run, `<run>/scratch/progress.json`, overwritten every few seconds by a thread of its own: a slow store never holds the
job up, and a lost write is made good by the next one. It states progress only; what is done is told by manifests alone.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import orjson

from coevo.display import Display
from coevo.errors import CoevoError
from coevo.ports import BlobStore, Progress

__all__ = ["Beacon", "BeaconDisplay", "read_beacon"]

log = logging.getLogger(__name__)

_EVERY_S = 5.0
_STALE_S = 60.0


@dataclass(frozen=True, slots=True)
class Beacon:
    """The last sign of a job.

    Attributes:
        stage, done, total, owed, tokens: As `coevo.ports.Progress`.
        at: Unix time of this sign.
        driver: `host:pid` of the driver.
        job: Its id at the Jobs server; empty for a run started by hand.
        open: False once the job said that it ends.
    """

    stage: str
    done: int
    total: int
    owed: int
    tokens: int
    at: float
    driver: str
    job: str
    open: bool

    def line(self, now: float) -> str:
        """For `coevo status`."""
        who = f"job {self.job}" if self.job else f"driver {self.driver}"
        if not self.open:
            return f"last at work on {self.stage}: {self.done:,} of {self.total:,} ({who}, ended)"
        age_s = max(0.0, now - self.at)
        state = "running" if age_s <= _STALE_S else f"silent for {age_s:,.0f} s"
        return f"{self.stage}: {self.done:,} of {self.total:,}, {self.owed:,} owed, {self.tokens:,} tokens ({who}, {state})"


def _key(run: str) -> str:
    return f"{run}/scratch/progress.json"


def read_beacon(store: BlobStore, run: str) -> Beacon | None:
    """The last sign; None when there is none that this version can read."""
    if store.head(_key(run)) is None:
        return None
    try:
        return Beacon(**orjson.loads(store.get(_key(run))))
    except (TypeError, orjson.JSONDecodeError):
        return None


class BeaconDisplay:
    """A display that hands everything on and keeps the beacon of `run` up to date. Close it when the job ends."""

    def __init__(self, display: Display, store: BlobStore, run: str, *, clock: Callable[[], float] = time.time) -> None:
        self._display = display
        self._store = store
        self._run = run
        self._clock = clock
        self._last: Progress | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="beacon", daemon=True)
        self._thread.start()

    def start(self, lines: Sequence[str]) -> None:
        """See `Display`, as all below."""
        self._display.start(lines)

    def stage(self, name: str, total: int) -> None:
        self._last = Progress(name, 0, total)
        self._display.stage(name, total)

    def progress(self, progress: Progress) -> None:
        self._last = progress
        self._display.progress(progress)

    def note(self, text: str) -> None:
        self._display.note(text)

    def table(self, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        self._display.table(title, header, rows)

    def result(self, stage: str, lines: Sequence[str]) -> None:
        self._display.result(stage, lines)

    def close(self) -> None:
        """Say that the job ends. The display itself belongs to the caller."""
        self._over.set()
        self._thread.join(2 * _EVERY_S)

    def _loop(self) -> None:
        while not self._over.wait(_EVERY_S):
            self._tell(still=True)
        self._tell(still=False)

    def _tell(self, *, still: bool) -> None:
        last = self._last
        if last is None:
            return
        facts = Beacon(
            **asdict(last),
            at=self._clock(),
            driver=f"{socket.gethostname()}:{os.getpid()}",
            job=os.environ.get("COEVO_SUBMISSION_ID", ""),
            open=still,
        )
        try:
            held = self._store.head(_key(self._run))
            self._store.put_if_match(_key(self._run), orjson.dumps(asdict(facts)), etag=held.etag if held is not None else None)
        except CoevoError as error:
            log.info("progress was not stored: %s", error)
