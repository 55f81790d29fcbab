"""A pool of model servers: placement, health, replacement.

One watch thread owns the replicas. It starts them one after the other (two engines that load at once were seen to exhaust a machine's
memory: R16), asks each for a heartbeat with a deadline of its own (a dead actor may otherwise keep its place without a word: R8), kills
what is dead, hung or stalled, and starts a replacement under the same name, so that clients in other processes find it. Every failure is
kept with the tail of the process's log (R10).

A replica whose node is being drained keeps serving while its successor starts elsewhere under the slot's other name; when the successor
serves, or the node is gone, the old one is ended, and clients find the new one in its place.

Limits: a replica is one actor, so tensor or pipeline parallelism stays within one node.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import TracebackType
from typing import Any, Self

import ray

from cluster.drain import DrainWatch
from cluster.engines.family import EngineConfig, ServingForm, check_engine_config, stop_token_ids_of
from cluster.engines.weights import KnownWeights
from cluster.model_folders import local_model
from cluster.model_server import CONTROL_GROUP, Health, ModelServer, Reply, ServerPlace, log_tail
from cluster.placement import actor_placement
from cluster.pool_model import PoolSource, actor_name, other_name
from cluster.router import RouterConfig
from cluster.session import NAMESPACE, session_is_local
from coevo.errors import CoevoError, ConfigError, InfraError, ModelError, PrerequisiteError, root_traceback

__all__ = ["ModelPool", "PoolConfig", "PoolStats", "ReplicaFailure", "ReplicaState", "ReplicaStats"]


class ReplicaState(StrEnum):
    """Where a replica is in its life."""

    DOWN = "down"
    """No process; started again when its back-off ends and nobody else is starting."""
    STARTING = "starting"
    """The process exists or is being placed; the engine is loading."""
    READY = "ready"
    """Serving."""
    RETIRED = "retired"
    """Scaled away."""


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """How a model is served.

    Attributes:
        engine: The engine of each replica.
        replicas: Number of replicas at full size.
        name: Name in the session; empty draws one.
        num_cpus, num_gpus, memory_bytes: What Ray reserves for each replica; `num_gpus` must cover tensor x pipeline parallel on GPUs.
        resources: Custom resources, for example an accelerator type or a pool's label.
        spread: One replica per node as far as there are nodes; else Ray packs them.
        heartbeat_s: Period of the watch thread.
        heartbeat_timeout_s: A heartbeat older than this means that the process hangs.
        stall_timeout_s: An engine with work that makes no progress for this long is replaced.
        start_timeout_s: Placement and loading of one replica.
        max_start_failures: `start` gives up after this many failures in a row.
        request_timeout_s: Deadline of one call of a client.
        router: Routing thresholds of each client.
    """

    engine: EngineConfig
    replicas: int = 2
    name: str = ""
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    memory_bytes: int = 0
    resources: Mapping[str, float] = field(default_factory=dict)
    spread: bool = True
    heartbeat_s: float = 0.5
    heartbeat_timeout_s: float = 60.0
    stall_timeout_s: float = 300.0
    start_timeout_s: float = 600.0
    max_start_failures: int = 3
    request_timeout_s: float = 600.0
    router: RouterConfig = field(default_factory=RouterConfig)


@dataclass(frozen=True, slots=True)
class ReplicaFailure:
    """Why a replica was replaced: reason in one line, and the end of its log."""

    replica: str
    generation: int
    reason: str
    log_tail: str
    at: float


@dataclass(frozen=True, slots=True)
class ReplicaStats:
    """One replica now. `health` is its last heartbeat; the times are monotonic seconds of the pool's process, None before they came."""

    name: str
    state: ReplicaState
    generation: int
    pid: int | None
    health: Health | None
    started_at: float | None = None
    ready_at: float | None = None


@dataclass(frozen=True, slots=True)
class PoolStats:
    """A pool now. `watch_age_s` = seconds since the watch thread's last round."""

    name: str
    model_id: str
    replicas: tuple[ReplicaStats, ...]
    failures: tuple[ReplicaFailure, ...]
    watch_age_s: float

    @property
    def ready(self) -> int:
        """Replicas that serve."""
        return sum(one.state is ReplicaState.READY for one in self.replicas)

    @property
    def depth(self) -> int:
        """Requests held by all replicas at their last heartbeat."""
        return sum(one.health.stats.depth for one in self.replicas if one.health is not None and one.state is ReplicaState.READY)


@dataclass(slots=True)
class _Slot:
    name: str
    state: ReplicaState = ReplicaState.DOWN
    generation: int = 0
    handle: Any = None
    place_ref: Any = None
    place: ServerPlace | None = None
    start_ref: Any = None
    started_at: float | None = None
    ready_at: float | None = None
    ping_ref: Any = None
    pinged_at: float = 0.0
    health: Health | None = None
    failures: int = 0
    not_before: float = 0.0


class ModelPool:
    """See the module. A context manager: leaving it ends all replicas.

    Raises:
        ConfigError: The engine's configuration can't work, or `replicas` is below 1.
    """

    def __init__(self, config: PoolConfig) -> None:
        check_engine_config(replace(config.engine, model_path=local_model(config.engine.model_path)))
        if config.replicas < 1:
            raise ConfigError("a pool needs at least one replica", seen=config.replicas, fix="set replicas to 2 or more")
        self.name = config.name or f"pool-{uuid.uuid4().hex[:8]}"
        self._config = config
        self._engine = config.engine
        self._adapters: dict[str, str] = {}
        self._known = KnownWeights()
        self._known.claim(config.engine.model_id, local_model(config.engine.model_path))
        self._slots = [_Slot(actor_name(self.name, index)) for index in range(config.replicas)]
        self._leaving: list[_Slot] = []
        self._drains = DrainWatch()
        self._failures: deque[ReplicaFailure] = deque(maxlen=32)
        self._changed = threading.Condition(threading.RLock())
        self._refusal: CoevoError | None = None
        self._stop = threading.Event()
        self._watched_at = time.monotonic()
        self._watch: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def model_id(self) -> str:
        """The id that the base of this pool serves."""
        return self._engine.model_id

    @property
    def serving_form(self) -> ServingForm:
        """Merged weights or adapters: stored with every measurement."""
        return self._engine.serving_form

    def start(self) -> Self:
        """Start all replicas and wait until they serve.

        Raises:
            CoevoError: The engine's own refusal (for example `PrerequisiteError`), or `InfraError` with the log's tail.
        """
        if self._watch is None:
            self._watch = threading.Thread(target=self._watch_loop, name=f"watch:{self.name}", daemon=True)
            self._watch.start()
        try:
            self.wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def wait_ready(self, *, timeout_s: float | None = None) -> None:
        """Block until every wanted replica serves.

        Raises:
            InfraError: Not within `timeout_s`, or too many failures in a row while starting.
        """
        limit = timeout_s if timeout_s is not None else self._config.start_timeout_s * len(self._slots)
        deadline = time.monotonic() + limit
        with self._changed:
            while not all(slot.state in (ReplicaState.READY, ReplicaState.RETIRED) for slot in self._slots):
                if self._refusal is not None:
                    raise self._refusal
                worst = max(self._slots, key=lambda slot: slot.failures)
                if worst.failures >= self._config.max_start_failures:
                    raise InfraError(
                        "a model server does not start", seen=self._last_failure(), fix="see the log; check memory and the model"
                    )
                if time.monotonic() > deadline or self._stop.is_set():
                    states = {slot.name: slot.state.value for slot in self._slots}
                    raise InfraError(
                        "the pool is not complete in time", seen=f"{states} {self._last_failure()}", fix="raise start_timeout_s"
                    )
                self._changed.wait(0.2)

    def source(self, model_id: str = "") -> PoolSource:
        """A picklable way in, for any process of the session.

        Raises:
            ModelError: The pool does not serve that id.
        """
        wanted = model_id or self._engine.model_id
        if wanted != self._engine.model_id and wanted not in self._adapters:
            raise self._known.refuse(wanted, (self._engine.model_id, *self._adapters))
        return PoolSource(
            pool=self.name,
            namespace=NAMESPACE,
            replicas=len(self._slots),
            served_id=wanted,
            tokenizer_path=self._config.engine.model_path,
            stop_token_ids=self._engine.stop_token_ids or stop_token_ids_of(local_model(self._engine.model_path)),
            router=self._config.router,
            request_timeout_s=self._config.request_timeout_s,
        )

    def load_weights(self, folder: str, *, model_id: str) -> PoolSource:
        """Swap every replica to the full weights of `folder`; requests for the old id are refused from then on.

        Raises:
            StoreError: The id stands for other weights.
            ModelError: The pool serves adapters, whose base stays.
            InfraError: The pool is not whole again in time.
        """
        if self.serving_form is not ServingForm.MERGED:
            raise ModelError(
                "this pool serves adapters: its base stays", seen=model_id, fix="load_adapter, or a pool with serving_form: merged"
            )
        check_engine_config(replace(self._engine, model_path=local_model(folder), model_id=model_id))
        self._known.claim(model_id, local_model(folder))
        with self._changed:
            self._engine = replace(self._engine, model_path=folder, model_id=model_id)
        self._on_every_replica("load_weights", folder, model_id)
        return self.source(model_id)

    def load_adapter(self, folder: str, *, model_id: str) -> PoolSource:
        """Serve an adapter beside the base on every replica, replacements included.

        Raises:
            StoreError: The id stands for another adapter.
            ModelError: The pool serves merged weights, or its adapter slots are taken.
            InfraError: The pool is not whole again in time.
        """
        if self.serving_form is not ServingForm.LORA:
            raise ModelError("this pool serves merged weights", seen=model_id, fix="load_weights, or a pool with serving_form: lora")
        self._known.claim(model_id, local_model(folder))
        if model_id not in self._adapters and len(self._adapters) >= self._engine.max_adapters:
            raise ModelError("all adapter slots are taken", seen=tuple(self._adapters), fix="raise max_adapters or open another pool")
        with self._changed:
            self._adapters[model_id] = folder
        self._on_every_replica("load_adapter", folder, model_id)
        return self.source(model_id)

    def scale(self, replicas: int) -> None:
        """Keep this many replicas, from 0 (a phase without this model) to the configured number; does not wait.

        Raises:
            ConfigError: Out of range.
        """
        if not 0 <= replicas <= len(self._slots):
            raise ConfigError("a pool scales between 0 and its configured size", seen=replicas, fix=f"0..{len(self._slots)}")
        with self._changed:
            self._end_leaving(lambda old: True)
            for index, slot in enumerate(self._slots):
                if index >= replicas and slot.state is not ReplicaState.RETIRED:
                    _kill(slot)
                    slot.state = ReplicaState.RETIRED
                elif index < replicas and slot.state is ReplicaState.RETIRED:
                    slot.state, slot.not_before = ReplicaState.DOWN, 0.0
            self._changed.notify_all()

    def place_next(self, resources: Mapping[str, float]) -> None:
        """Custom resources that replicas started from now on ask of their node, such as a market's label; those that run stay."""
        with self._changed:
            self._config = replace(self._config, resources=dict(resources))

    def stats(self) -> PoolStats:
        """State, load and recent failures."""
        with self._changed:
            replicas = tuple(_stats_of(slot) for slot in self._slots)
            return PoolStats(self.name, self._engine.model_id, replicas, tuple(self._failures), time.monotonic() - self._watched_at)

    def close(self) -> None:
        """End the watch and all replicas. May be called twice."""
        self._stop.set()
        if self._watch is not None and self._watch is not threading.current_thread():
            self._watch.join(30.0)
        with self._changed:
            self._end_leaving(lambda old: True)
            for slot in self._slots:
                _kill(slot)
                slot.state = ReplicaState.RETIRED
            self._changed.notify_all()

    def _on_every_replica(self, method: str, folder: str, model_id: str) -> None:
        """Apply a change to the replicas that serve; one that fails or was still loading is replaced, and starts with the change."""
        with self._changed:
            self._end_leaving(lambda old: True)
            for slot in self._slots:
                if slot.state is ReplicaState.STARTING:
                    self._fail(slot, f"restarted to {method} {model_id}", blame=False)
            ready = [
                (slot, slot.generation, getattr(slot.handle, method).remote(folder, model_id)) for slot in self._slots if _serves(slot)
            ]
        for slot, generation, ref in ready:
            error = _error_of(ref, timeout_s=self._config.start_timeout_s)
            with self._changed:
                if error is not None and slot.generation == generation and slot.state is ReplicaState.READY:
                    self._fail(slot, f"{method} {model_id}: {_text_of(error)}")
        self.wait_ready()

    def _last_failure(self) -> str:
        if not self._failures:
            return "no failure on record; are there free CPUs or GPUs for the replicas?"
        last = self._failures[-1]
        return f"{last.replica}: {last.reason}\n{last.log_tail[-2000:]}"

    def _watch_loop(self) -> None:
        while not self._stop.is_set():
            try:
                draining = self._drains.nodes()  # outside the lock: with a lost head the answer takes a minute
                with self._changed:
                    if self._stop.is_set():
                        break
                    self._round(draining)
                    self._watched_at = time.monotonic()
            except Exception as error:  # noqa: BLE001 - the watch itself must outlive whatever one round meets
                self._failures.append(ReplicaFailure(self.name, 0, "the watch met an error", root_traceback(error), time.time()))
            self._stop.wait(self._config.heartbeat_s)

    def _round(self, draining: frozenset[str]) -> None:
        self._follow_drains(draining)
        for slot in self._slots:
            if slot.state is ReplicaState.STARTING:
                self._check_start(slot)
            elif slot.state is ReplicaState.READY:
                self._check_heartbeat(slot)
        if not any(slot.state is ReplicaState.STARTING for slot in self._slots):
            down = [slot for slot in self._slots if slot.state is ReplicaState.DOWN and time.monotonic() >= slot.not_before]
            if down:
                self._begin(down[0])
        self._changed.notify_all()

    def _follow_drains(self, draining: frozenset[str]) -> None:
        """Give every replica on a draining node a successor, and end those whose successor serves."""
        for index, slot in enumerate(self._slots):
            if slot.state is ReplicaState.READY and slot.place is not None and slot.place.node in draining:
                reason = f"the node {slot.place.node[:8]} is being drained"
                self._failures.append(ReplicaFailure(slot.name, slot.generation, reason, "", time.time()))
                self._leaving.append(slot)
                self._slots[index] = _Slot(other_name(slot.name), generation=slot.generation)
        serving = {slot.name for slot in self._slots if slot.state in (ReplicaState.READY, ReplicaState.RETIRED)}
        self._end_leaving(lambda old: other_name(old.name) in serving)

    def _end_leaving(self, over: Callable[[_Slot], bool]) -> None:
        for slot in [one for one in self._leaving if over(one)]:
            _kill(slot)
            self._leaving.remove(slot)

    def _begin(self, slot: _Slot) -> None:
        config = self._config
        placed = actor_placement(config.num_cpus, config.num_gpus, config.resources, config.memory_bytes, spread=config.spread)
        remote: Any = ray.remote  # its stubs do not know actor options
        actor = remote(concurrency_groups={CONTROL_GROUP: 4}, max_restarts=0)(ModelServer)
        try:
            handle = actor.options(name=slot.name, namespace=NAMESPACE, **placed).remote(
                self._engine, tuple(self._adapters.items()), "127.0.0.1" if session_is_local() else ""
            )
        except ValueError:  # the killed predecessor still holds the name for a moment
            slot.not_before = time.monotonic() + 0.2
            return
        slot.generation += 1
        slot.handle, slot.state, slot.health, slot.place = handle, ReplicaState.STARTING, None, None
        slot.started_at = slot.pinged_at = time.monotonic()
        slot.ready_at = None
        slot.ping_ref = None
        slot.place_ref = _control(handle.place).remote()
        slot.start_ref = handle.start.remote()

    def _check_start(self, slot: _Slot) -> None:
        if slot.place is None and _done(slot.place_ref):
            with contextlib.suppress(ray.exceptions.RayError):
                slot.place = ray.get(slot.place_ref)
        if _done(slot.start_ref):
            error = _error_of(slot.start_ref, timeout_s=1.0)
            if error is not None:
                self._refusal = error if isinstance(error, ConfigError | PrerequisiteError) else None
                self._fail(slot, f"start failed: {_text_of(error)}")
                return
            slot.state, slot.failures = ReplicaState.READY, 0
            slot.start_ref, slot.ready_at = None, time.monotonic()
            self._check_heartbeat(slot)
        elif time.monotonic() - (slot.started_at or 0.0) > self._config.start_timeout_s:
            placed = "is loading" if slot.place is not None else "was never placed: the cluster lacks free CPUs, GPUs or memory for it"
            self._fail(slot, f"start took longer than {self._config.start_timeout_s} s; the process {placed}")

    def _check_heartbeat(self, slot: _Slot) -> None:
        now = time.monotonic()
        if slot.ping_ref is None:
            slot.ping_ref, slot.pinged_at = _control(slot.handle.health).remote(), now
            return
        if not _done(slot.ping_ref):
            if now - slot.pinged_at > self._config.heartbeat_timeout_s:
                self._fail(slot, f"no heartbeat for {self._config.heartbeat_timeout_s} s")
            return
        try:
            slot.health = ray.get(slot.ping_ref)
        except ray.exceptions.RayError as error:
            self._fail(slot, f"process died: {_last_line(error)}")
            return
        slot.ping_ref = None
        if slot.health is not None and not slot.health.ready:
            self._fail(slot, f"engine died: {slot.health.error}")
        elif slot.health is not None and slot.health.stats.idle_s > self._config.stall_timeout_s:
            self._fail(slot, f"engine made no progress for {slot.health.stats.idle_s:.0f} s")

    def _fail(self, slot: _Slot, reason: str, *, blame: bool = True) -> None:
        """Record, kill, and let the watch start a replacement after a back-off that doubles with every failure in a row."""
        tail = log_tail(slot.place.log_path) if slot.place is not None else ""
        tail = tail or (slot.health.log_tail if slot.health is not None else "")
        if blame:
            self._failures.append(ReplicaFailure(slot.name, slot.generation, reason, tail, time.time()))
            slot.failures += slot.state is ReplicaState.STARTING
        _kill(slot)
        slot.state = ReplicaState.DOWN
        slot.not_before = time.monotonic() + (min(60.0, 0.5 * 2.0**slot.failures) if slot.failures else 0.0)


def _stats_of(slot: _Slot) -> ReplicaStats:
    pid = slot.place.pid if slot.place is not None else None
    return ReplicaStats(slot.name, slot.state, slot.generation, pid, slot.health, slot.started_at, slot.ready_at)


def _serves(slot: _Slot) -> bool:
    return slot.state is ReplicaState.READY


def _kill(slot: _Slot) -> None:
    if slot.handle is not None and ray.is_initialized():
        with contextlib.suppress(Exception):
            ray.kill(slot.handle, no_restart=True)
    slot.handle = slot.ping_ref = slot.start_ref = slot.place_ref = None


def _control(method: Any) -> Any:
    return method.options(concurrency_group=CONTROL_GROUP)


def _done(ref: Any) -> bool:
    ready, _ = ray.wait([ref], timeout=0)
    return bool(ready)


def _error_of(ref: Any, *, timeout_s: float) -> CoevoError | None:
    """Why a call failed: the server's own error, or an `InfraError` about the lost process; None when it did not fail."""
    try:
        reply: Reply = ray.get(ref, timeout=timeout_s)
    except ray.exceptions.RayError as error:
        return InfraError("the model server was lost", seen=_last_line(error))
    return reply.error


def _text_of(error: CoevoError) -> str:
    return f"{type(error).__name__}: {error}"


def _last_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"
