"""The process that serves a model: a Ray actor around one engine.

Ray calls serve control: start, heartbeats, weights. Tokens go over a connection of their own (`cluster.channel`). Failures travel as data:
a reply carries either the answer or our own error, so what Ray itself raises always means that the process or its node is gone.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray

from cluster.channel import Answer, ChannelServer, Door
from cluster.engines.family import Engine, EngineConfig, EngineStats, open_engine
from cluster.model_folders import local_model
from coevo.chat import Sampling
from coevo.errors import CoevoError, InfraError, root_traceback

__all__ = ["CONTROL_GROUP", "Health", "ModelServer", "Reply", "ServerPlace", "log_tail"]

CONTROL_GROUP = "control"
"""Concurrency group of health calls: they answer when every serving slot is taken."""

_TAIL_BYTES = 4000


@dataclass(frozen=True, slots=True)
class Reply:
    """Outcome of a control call; no error means done."""

    error: CoevoError | None = None


@dataclass(frozen=True, slots=True)
class ServerPlace:
    """Where a server runs. `log_path` is its error log on that machine, `node` its node's id; empty when unknown."""

    pid: int
    host: str
    log_path: str
    node: str = ""


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
        host: Address to listen on for clients; empty for this node's own address.
    """

    def __init__(self, config: EngineConfig, adapters: Sequence[tuple[str, str]] = (), host: str = "127.0.0.1") -> None:
        os.environ["OMP_NUM_THREADS"] = str(config.threads)
        self._config = config
        self._adapters = tuple(adapters)
        self._engine: Engine | None = None
        self._error = ""
        self._host = host
        self._channel = ChannelServer(self._serve)
        self._door: Door | None = None
        context: Any = ray.get_runtime_context()
        self._place = ServerPlace(os.getpid(), socket.gethostname(), _error_log_path(), context.get_node_id())

    async def place(self) -> ServerPlace:
        """Where this process runs."""
        return self._place

    async def start(self) -> Reply:
        """Build the engine and load the adapters; the reply's error carries the root cause's traceback."""
        try:
            folder = await asyncio.to_thread(local_model, self._config.model_path)
            engine = await asyncio.to_thread(open_engine, replace(self._config, model_path=folder))
            for model_id, place in self._adapters:
                await engine.load_adapter(await asyncio.to_thread(local_model, place), model_id=model_id)
        except CoevoError as error:
            self._error = str(error)
            return Reply(error=error)
        self._engine = engine
        own_address: Any = ray.util.get_node_ip_address
        self._door = await self._channel.listen(self._host or own_address())
        return Reply()

    async def door(self) -> Door | None:
        """Where clients connect; None while there is no living engine."""
        return self._door if self._engine is not None and not self._engine.error else None

    async def health(self) -> Health:
        """The heartbeat; answered in a thread of its own."""
        engine = self._engine
        stats = engine.stats() if engine is not None else EngineStats()
        error = self._error or (engine.error if engine is not None else "")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        tail = await asyncio.to_thread(log_tail, self._place.log_path)
        return Health(engine is not None and not error, error, stats, peak, tail, time.time())

    async def load_weights(self, folder: str, model_id: str) -> Reply:
        """Serve other weights from now on."""
        return await self._load("load_weights", folder, model_id)

    async def load_adapter(self, folder: str, model_id: str) -> Reply:
        """Serve one adapter more."""
        return await self._load("load_adapter", folder, model_id)

    async def _load(self, method: str, place: str, model_id: str) -> Reply:
        try:
            folder = await asyncio.to_thread(local_model, place)
        except CoevoError as error:
            return Reply(error)
        return Reply((await self._guarded(method, folder, model_id=model_id))[1])

    def close(self) -> None:
        """Stop listening and stop the engine."""
        self._channel.close()
        if self._engine is not None:
            self._engine.close()

    async def _serve(self, method: str, arguments: Sequence[Any]) -> Answer:
        """A client's request as the engine's call; the value is made of JSON types."""
        value: Any = None
        if method == "generate":
            prompt, (temperature, top_p, max_tokens), seed, model_id = arguments
            sampling = Sampling(temperature, top_p, max_tokens)
            value, error = await self._guarded("generate", prompt, sampling, seed=seed, model_id=model_id)
            value = None if value is None else [value.token_ids, value.logprobs, value.cached_tokens, value.finish_reason]
        elif method == "score":
            prompt, completion, model_id = arguments
            value, error = await self._guarded("score", prompt, completion, model_id=model_id)
        else:
            error = InfraError("a client asked for what servers do not do", seen=method, fix="use one version of the code on all nodes")
        stats = self._engine.stats() if self._engine is not None else EngineStats()
        return Answer(value, error, stats.depth, stats.kv_use)

    async def _guarded(self, method: str, *arguments: object, **named: object) -> tuple[Any, CoevoError | None]:
        if self._engine is None:
            return None, InfraError("the model server is still starting", seen=self._error or None, fix="retry")
        try:
            return await getattr(self._engine, method)(*arguments, **named), None
        except CoevoError as error:
            return None, error
        except Exception as error:  # noqa: BLE001 - an answer must come back; the caller decides by its kind
            return None, InfraError("the model server failed", seen=root_traceback(error), fix="retry elsewhere")


def _error_log_path() -> str:
    """The file that this process's stderr goes to (Ray gives each worker one); empty where the system does not say."""
    try:
        path = os.readlink("/proc/self/fd/2")
    except OSError:
        return ""
    return path if Path(path).is_file() else ""
