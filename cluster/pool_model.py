"""The way into a pool from any process: routing, failover, text.

`PoolSource` is picklable and names the pool; the replicas are looked up by their actor names, so a replacement is found wherever the
client runs, and reached over a connection each (`cluster.channel`). Each client routes by itself (`cluster.router`) and learns about other
clients' load from the depth in every answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import ray

from cluster.channel import Answer, Channel, ChannelLost, Door
from cluster.model_folders import local_model
from cluster.model_server import CONTROL_GROUP
from cluster.router import Assignment, Router, RouterConfig, RouterStats
from coevo.chat import Completion, FinishReason, ModelRequest, Usage
from coevo.errors import InfraError, ModelError
from coevo.identity import content_hash
from coevo.models.tokenizer import FolderTokenizer

__all__ = ["PoolModel", "PoolSource", "actor_name", "other_name"]

_SECOND = "+"
_REFRESH_S = 0.5
_DOOR_TIMEOUT_S = 10.0


def actor_name(pool: str, index: int) -> str:
    """Name of a replica's actor; a replacement takes its predecessor's."""
    return f"{pool}/{index}"


def other_name(name: str) -> str:
    """The second name of the same place: its successor's while the first one still serves on a node that is being drained."""
    return name.removesuffix(_SECOND) if name.endswith(_SECOND) else name + _SECOND


@dataclass(frozen=True, slots=True)
class PoolSource:
    """Recipe of a `PoolModel`; crosses Ray.

    Attributes:
        pool, namespace, replicas: Where the replicas are found.
        served_id: Model id that this source asks for; the servers refuse it once they serve other weights.
        tokenizer_path: Model folder with tokenizer.json, readable where the source is opened.
        stop_token_ids: Ids whose text is left out of `Completion.text`.
        router: Routing thresholds.
        request_timeout_s: Deadline of one call, waiting for a place included.
        wait_s: How long a call waits when no replica serves.
        only: Ask this replica and no other (the canary proves each by itself); None = all.
    """

    pool: str
    namespace: str
    replicas: int
    served_id: str
    tokenizer_path: str
    stop_token_ids: tuple[int, ...]
    router: RouterConfig = field(default_factory=RouterConfig)
    request_timeout_s: float = 600.0
    wait_s: float = 120.0
    only: int | None = None

    @property
    def model_id(self) -> str:
        """The id that this source asks for."""
        return self.served_id

    def open(self) -> PoolModel:
        """Connect from this process, which must be part of the Ray session."""
        return PoolModel(self)


class _Lost(Exception):
    """The replica can't answer any more; another may."""


class PoolModel:
    """`ChatModel` and `Scorer` over a pool. Used from one thread; moving to another event loop drops its connections and pins."""

    def __init__(self, source: PoolSource) -> None:
        self._source = source
        self._router = Router(source.router)
        self._tokenizer = FolderTokenizer(local_model(source.tokenizer_path))
        self._names = [actor_name(source.pool, index) for index in (range(source.replicas) if source.only is None else (source.only,))]
        self._channels: dict[str, Channel] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tickets = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[str]] = {}
        self._refreshing: asyncio.Task[None] | None = None
        self._refreshed_at = float("-inf")
        self._closed = False

    @property
    def model_id(self) -> str:
        """The id of the weights that answer."""
        return self._source.served_id

    def router_stats(self) -> RouterStats:
        """How this client's requests were routed."""
        return self._router.stats()

    async def complete(self, request: ModelRequest) -> Completion:
        """One turn. Needs `request.prompt_token_ids`; a request for another model is refused.

        Raises:
            ModelError: The request can't be served as asked.
            InfraError: No replica could answer.
        """
        if request.model_id not in ("", self.model_id):
            seen = f"wanted {request.model_id}, this source serves {self.model_id}"
            raise ModelError("the request names another model than this source", seen=seen, fix="open the source of that model")
        if request.prompt_token_ids is None:
            raise ModelError(
                "a pool takes token ids and the request has none", seen=request.session, fix="render prompt_token_ids with the format"
            )
        sampling = request.sampling
        settings = (sampling.temperature, sampling.top_p, sampling.max_tokens)
        value = await self._call(request.session, "generate", request.prompt_token_ids, settings, request.seed, self.model_id)
        token_ids, cached_tokens = tuple(value[0]), int(value[2])
        ended = bool(token_ids) and token_ids[-1] in self._source.stop_token_ids
        text = self._tokenizer.decode(token_ids[:-1] if ended else token_ids)
        usage = Usage(len(request.prompt_token_ids), cached_tokens, len(token_ids))
        return Completion(text, FinishReason(value[3]), token_ids, _floats(value[1]), usage)

    async def logprobs(self, prompt: Sequence[int], completion: Sequence[int], *, model_id: str = "") -> tuple[float, ...]:
        """Natural-log probability of each completion token given the prompt, at temperature 1.

        Raises:
            ModelError: The request can't be served as asked.
            InfraError: No replica could answer.
        """
        session = f"score:{content_hash(list(prompt))[:16]}"
        scores = await self._call(session, "score", tuple(prompt), tuple(completion), model_id or self.model_id)
        self._router.forget(session)
        return _floats(scores)

    async def aclose(self) -> None:
        """Fail what waits and hang up. The pool lives on."""
        self._closed = True
        if self._refreshing is not None and not self._refreshing.done():
            self._refreshing.cancel()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(InfraError("the model was closed", fix="open it again"))
        self._hang_up()

    async def _call(self, session: str, method: str, *arguments: object) -> Any:
        """Route, ask, and on a lost replica ask once more elsewhere."""
        if self._closed:
            raise InfraError("the model is closed", seen=self.model_id, fix="open it again")
        self._bind_loop()
        reason = ""
        for _ in range(2):
            ticket = next(self._tickets)
            try:
                replica = await self._admit(ticket, session)
                return await self._ask(replica, method, *arguments)
            except _Lost as lost:
                reason = str(lost)
            finally:
                self._grant(self._router.release(ticket))
        raise InfraError("two replicas were lost under this request", seen=reason, fix="the pool heals itself; retry")

    def _bind_loop(self) -> None:
        """Connections belong to a loop: another one than last time starts afresh."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None and not self._loop.is_closed():
                self._hang_up()
            self._loop, self._channels, self._refreshing = loop, {}, None
            self._router, self._refreshed_at = Router(self._source.router), float("-inf")

    def _hang_up(self) -> None:
        for channel in self._channels.values():
            with contextlib.suppress(RuntimeError):  # the loop of the connection is closed: so is the connection
                channel.close()
        self._channels = {}

    async def _ask(self, replica: str, method: str, *arguments: object) -> Any:
        channel = self._channels.get(replica)
        if channel is None:
            raise _Lost(f"{replica} is gone")
        try:
            async with asyncio.timeout(self._source.request_timeout_s):
                answer: Answer = await channel.ask(method, *arguments)
        except TimeoutError as error:
            raise InfraError(
                "a model call passed its deadline", seen=f"{replica}: {self._source.request_timeout_s} s", fix="retry"
            ) from error
        except ChannelLost as error:
            self._lose(replica)
            raise _Lost(f"{replica}: {error}") from error
        self._router.report(replica, depth=answer.depth, kv_use=answer.kv_use)
        if isinstance(answer.error, InfraError):
            self._lose(replica)
            raise _Lost(f"{replica}: {answer.error}")
        if answer.error is not None:
            raise answer.error
        return answer.value

    def _lose(self, replica: str) -> None:
        channel = self._channels.pop(replica, None)
        if channel is not None:
            channel.close()
            self._router.drop(replica)

    async def _admit(self, ticket: int, session: str) -> str:
        """Wait for a place; looks for new replicas meanwhile."""
        if len(self._channels) < len(self._names):
            self._refresh_soon()
        assignment = self._router.submit(ticket, session=session)
        if assignment is not None:
            return assignment.replica
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = future
        try:
            return await self._wait_for_place(future)
        finally:
            del self._waiting[ticket]

    async def _wait_for_place(self, future: asyncio.Future[str]) -> str:
        started = served_at = time.monotonic()
        while True:
            done, _ = await asyncio.wait([future], timeout=_REFRESH_S)
            if done:
                return future.result()
            now = time.monotonic()
            served_at = now if self._channels else served_at
            if now - served_at > self._source.wait_s:
                raise InfraError(
                    "no replica of the pool serves", seen=f"{self._source.pool} for {self._source.wait_s} s", fix="see the pool's failures"
                )
            if now - started > self._source.request_timeout_s:
                raise InfraError(
                    "no place in the pool in time", seen=f"{self._source.request_timeout_s} s", fix="add replicas or lower the load"
                )
            if len(self._channels) < len(self._names):
                self._refresh_soon()

    def _grant(self, assignments: Sequence[Assignment]) -> None:
        for ticket, replica in assignments:
            future = self._waiting.get(ticket)
            if future is not None and not future.done():
                future.set_result(replica)

    def _refresh_soon(self) -> None:
        """Look missing replicas up, at most every half second and once at a time."""
        loop = asyncio.get_running_loop()
        task = self._refreshing
        busy = task is not None and not task.done() and task.get_loop() is loop
        if not busy and time.monotonic() - self._refreshed_at >= _REFRESH_S:
            self._refreshed_at = time.monotonic()
            self._refreshing = loop.create_task(self._refresh())

    async def _refresh(self) -> None:
        missing = [name for name in self._names if name not in self._channels]
        found = await asyncio.gather(*(self._find(name) for name in missing))
        fresh = {name: channel for name, channel in zip(missing, found, strict=True) if channel is not None}
        if self._closed:
            for channel in fresh.values():
                channel.close()
        elif fresh:
            self._channels |= fresh
            self._grant(self._router.add(*fresh))

    async def _find(self, name: str) -> Channel | None:
        """A connection to the replica when it serves, else None."""
        return await self._knock(name) or await self._knock(other_name(name))

    async def _knock(self, actor: str) -> Channel | None:
        try:
            handle = ray.get_actor(actor, namespace=self._source.namespace)
            async with asyncio.timeout(_DOOR_TIMEOUT_S):
                door: Door | None = await handle.door.options(concurrency_group=CONTROL_GROUP).remote()
                return await Channel.connect(door) if door is not None else None
        except (ValueError, OSError, TimeoutError, ray.exceptions.RayError):
            return None


def _floats(values: Sequence[float | None]) -> tuple[float, ...]:
    """JSON has no infinities: a probability of zero arrives as null."""
    return tuple(float("-inf") if value is None else value for value in values)
