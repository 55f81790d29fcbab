"""The process that serves a model: a Ray actor around one engine.

Failures travel as data: a `Reply` carries either the answer or our own error, so a caller never has to unwrap a framework's exception to
learn what happened; what Ray itself raises then always means that the process or its node is gone.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.engines.family import Engine, EngineConfig, EngineStats, open_engine
from coevo.chat import Sampling
from coevo.errors import CoevoError, InfraError, root_traceback

__all__ = ["CONTROL_GROUP", "Health", "ModelServer", "Reply", "ServerPlace", "log_tail"]

CONTROL_GROUP = "control"
"""Concurrency group of health calls: they answer when every serving slot is taken."""

_TAIL_BYTES = 4000


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer of a server: `value` or `error`, and how loaded it is (requests it holds from all clients; share of its KV cache in use)."""

    value: Any = None
    error: CoevoError | None = None
    depth: int = 0
    kv_use: float | None = None


@dataclass(frozen=True, slots=True)
class ServerPlace:
    """Where a server runs. `log_path` is its error log on that machine; empty when unknown."""

    pid: int
    host: str
    log_path: str


@dataclass(frozen=True, slots=True)
class Health:
    """One heartbeat.

    Attributes:
        ready: The engine is built and alive.
        error: Why the engine died or did not start; empty while it lives.
        stats: Load and progress.
        peak_rss_bytes: Largest resident memory so far.
        log_tail: Last lines of the process's error log: all that is left of it when its machine vanishes.
        at: Unix time.
    """

    ready: bool
    error: str
    stats: EngineStats
    peak_rss_bytes: int
    log_tail: str
    at: float


def log_tail(path: str, *, limit_bytes: int = _TAIL_BYTES) -> str:
    """The end of a log file; empty when there is none here."""
    try:
        with Path(path).open("rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - limit_bytes))
            return stream.read().decode(errors="replace")
    except OSError:
        return ""


class ModelServer:
    """Owns one engine. The constructor is cheap; `start` builds the engine, so that health calls work meanwhile.

    Args:
        config: The engine.
        adapters: (model id, folder) pairs to load before the server counts as ready.
    """

    def __init__(self, config: EngineConfig, adapters: Sequence[tuple[str, str]] = ()) -> None:
        os.environ["OMP_NUM_THREADS"] = str(config.threads)
        self._config = config
        self._adapters = tuple(adapters)
        self._engine: Engine | None = None
        self._error = ""
        self._place = ServerPlace(os.getpid(), socket.gethostname(), _error_log_path())

    async def place(self) -> ServerPlace:
        """Where this process runs."""
        return self._place

    async def start(self) -> Reply:
        """Build the engine and load the adapters; the reply's error carries the root cause's traceback."""
        try:
            engine = await asyncio.to_thread(open_engine, self._config)
            for model_id, folder in self._adapters:
                await engine.load_adapter(folder, model_id=model_id)
        except CoevoError as error:
            self._error = str(error)
            return Reply(error=error)
        self._engine = engine
        return Reply()

    async def health(self) -> Health:
        """The heartbeat; answered in a thread of its own."""
        engine = self._engine
        stats = engine.stats() if engine is not None else EngineStats()
        error = self._error or (engine.error if engine is not None else "")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        tail = await asyncio.to_thread(log_tail, self._place.log_path)
        return Health(engine is not None and not error, error, stats, peak, tail, time.time())

    async def generate(self, prompt: Sequence[int], sampling: Sampling, seed: int, model_id: str) -> Reply:
        """One completion; the value is a `RawCompletion`."""
        return await self._answer("generate", prompt, sampling, seed=seed, model_id=model_id)

    async def score(self, prompt: Sequence[int], completion: Sequence[int], model_id: str) -> Reply:
        """Log-probabilities of a given completion; the value is a tuple of floats."""
        return await self._answer("score", prompt, completion, model_id=model_id)

    async def load_weights(self, folder: str, model_id: str) -> Reply:
        """Serve other weights from now on."""
        return await self._answer("load_weights", folder, model_id=model_id)

    async def load_adapter(self, folder: str, model_id: str) -> Reply:
        """Serve one adapter more."""
        return await self._answer("load_adapter", folder, model_id=model_id)

    def close(self) -> None:
        """Stop the engine."""
        if self._engine is not None:
            self._engine.close()

    async def _answer(self, method: str, *arguments: object, **named: object) -> Reply:
        engine = self._engine
        if engine is None:
            return Reply(error=InfraError("the model server is still starting", seen=self._error or None, fix="retry"))
        value: Any = None
        failure: CoevoError | None = None
        try:
            value = await getattr(engine, method)(*arguments, **named)
        except CoevoError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - a reply must come back; the caller decides by its kind
            failure = InfraError("the model server failed", seen=root_traceback(error), fix="retry elsewhere")
        stats = engine.stats()
        return Reply(value, failure, stats.depth, stats.kv_use)


def _error_log_path() -> str:
    """The file that this process's stderr goes to (Ray gives each worker one); empty where the system does not say."""
    try:
        path = os.readlink("/proc/self/fd/2")
    except OSError:
        return ""
    return path if Path(path).is_file() else ""
