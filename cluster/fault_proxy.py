"""A proxy that makes a server fail on schedule: what a job does in an outage can be tried before the first outage.

It stands in front of one HTTP server (an S3 store, a model endpoint), on loopback, in a thread of its own, and understands just enough of
HTTP/1.1 to tell one request from the next. What happens to a request is a function of the seed, the request's number and the time since
the start, so a schedule can be repeated; with several connections the numbers depend on who comes first.

Limits: plain HTTP; a body is held in memory; request bodies with a length or in chunks, no upgrades.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import NamedTuple, Self

from coevo.errors import ConfigError

__all__ = ["FaultPhase", "FaultProxy", "NetworkFault"]

log = logging.getLogger(__name__)

_HEAD_BYTES = 1 << 16
_NO_BODY = frozenset({"204", "304"})


class NetworkFault(StrEnum):
    """What happens to a request."""

    ERROR = "error"
    """Answered with 500; the server never sees it."""
    SLOW_DOWN = "slow_down"
    """Answered with 503 SlowDown, as S3 does under load; the server never sees it."""
    RESET = "reset"
    """The connection is reset; the server never sees it."""
    TORN_UPLOAD = "torn_upload"
    """Half of the body reaches the server, then both connections break."""
    TORN_ANSWER = "torn_answer"
    """The request is carried out, half of the answer's body arrives."""
    LOST_ANSWER = "lost_answer"
    """The request is carried out, the answer is lost."""
    DELAY = "delay"
    """Passed on after `FaultPhase.delay_s` seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPhase:
    """When and how often which faults happen.

    Attributes:
        kinds: Drawn from with equal chances.
        rate: Share of the matching requests that fail; 1.0 is an outage.
        start_s: Seconds after the proxy's start (or the last `schedule`) when the phase begins.
        stop_s: ...and when it ends.
        methods: HTTP methods; empty for all.
        target: Only requests whose target holds this text.
        delay_s: Length of a delay.
        at_most: Faults of this phase; None for no limit.
    """

    kinds: tuple[NetworkFault, ...]
    rate: float = 1.0
    start_s: float = 0.0
    stop_s: float = math.inf
    methods: frozenset[str] = frozenset()
    target: str = ""
    delay_s: float = 0.2
    at_most: int | None = None

    def __post_init__(self) -> None:
        if not self.kinds or not 0 < self.rate <= 1 or self.start_s >= self.stop_s:
            seen = f"kinds {list(self.kinds)}, rate {self.rate}, from {self.start_s} to {self.stop_s} s"
            raise ConfigError("a fault phase that can't happen", seen=seen, fix="name kinds, a rate in (0, 1], and a stop after the start")

    def matches(self, method: str, target: str, elapsed_s: float) -> bool:
        """Whether a request at that time may be hit."""
        return self.start_s <= elapsed_s < self.stop_s and (not self.methods or method in self.methods) and self.target in target


class _Message(NamedTuple):
    """One request or answer: first line, header lines as they came, body (decoded from chunks)."""

    first: str
    headers: tuple[str, ...]
    body: bytes

    @property
    def encoded(self) -> bytes:
        return _head(self.first, self.headers) + self.body


def _head(first: str, headers: Sequence[str]) -> bytes:
    return "\r\n".join((first, *headers, "", "")).encode("latin-1")


@dataclass(slots=True)
class FaultProxy:
    """See the module docstring. Use as a context manager, or `start` and `close`.

    Attributes:
        host, port: The server behind.
        phases: The schedule; the first phase that matches and strikes decides.
        seed: Of the draws.
        counts: Requests (`requests`), and faults by kind.
        listening: Port of the proxy on 127.0.0.1, 0 before the start.
    """

    host: str
    port: int
    phases: tuple[FaultPhase, ...] = ()
    seed: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    listening: int = 0
    _started_at: float = 0.0
    _struck: Counter[int] = field(default_factory=Counter)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    _thread: threading.Thread | None = None

    @property
    def endpoint(self) -> str:
        """URL of the proxy."""
        return f"http://127.0.0.1:{self.listening}"

    def start(self) -> Self:
        """Listen on a free port."""
        ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(ready,), name="coevo-fault-proxy", daemon=True)
        self._thread.start()
        ready.wait(30.0)
        self.schedule(self.phases)
        return self

    def schedule(self, phases: Sequence[FaultPhase]) -> None:
        """Replace the schedule; its clock starts now."""
        self.phases, self._started_at = tuple(phases), time.monotonic()
        self._struck.clear()

    def close(self) -> None:
        """Stop listening and cut what is connected."""
        if self._thread is None:
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10.0)
        self._thread = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._connection, "127.0.0.1", 0, limit=_HEAD_BYTES, backlog=512))
        self.listening = server.sockets[0].getsockname()[1]
        ready.set()
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """All requests of one client connection, over one connection to the server."""
        upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        try:
            while (request := await _read_request(reader, writer)) is not None:
                self.counts["requests"] += 1
                fault, delay_s = self._draw(request, self.counts["requests"])
                if fault in {NetworkFault.ERROR, NetworkFault.SLOW_DOWN}:
                    writer.write(_refusal(fault))
                    await writer.drain()
                    continue
                if fault is NetworkFault.RESET:
                    return _reset(writer)
                if fault is NetworkFault.DELAY:
                    await asyncio.sleep(delay_s)
                upstream = upstream or await asyncio.open_connection(self.host, self.port, limit=_HEAD_BYTES)
                if fault is NetworkFault.TORN_UPLOAD:
                    await _send_half(request, upstream[1])
                    _reset(upstream[1])
                    return _reset(writer)
                upstream[1].write(request.encoded)
                answer = await _read_answer(upstream[0], head_only=request.first.startswith("HEAD "))
                if fault is NetworkFault.LOST_ANSWER:
                    return _reset(writer)
                if fault is NetworkFault.TORN_ANSWER:
                    writer.write(answer.encoded[: len(answer.encoded) - (len(answer.body) + 1) // 2])
                    await writer.drain()
                    writer.close()
                    return None
                writer.write(answer.encoded)
                await writer.drain()
        except (EOFError, ValueError, OSError, asyncio.CancelledError) as error:  # a cancelled one ends with the proxy
            log.debug("a proxied connection ended: %r", error)
            _reset(writer)
        finally:
            writer.close()
            if upstream is not None:
                upstream[1].close()

    def _draw(self, request: _Message, number: int) -> tuple[NetworkFault | None, float]:
        method, target = request.first.split(" ")[:2]
        elapsed_s = time.monotonic() - self._started_at
        for index, phase in enumerate(self.phases):
            if not phase.matches(method, target, elapsed_s):
                continue
            if phase.at_most is not None and self._struck[index] >= phase.at_most:
                continue
            rng = Random(f"{self.seed}/{index}/{number}")
            if rng.random() < phase.rate:
                fault = rng.choice(phase.kinds)
                self._struck[index] += 1
                self.counts[fault] += 1
                return fault, phase.delay_s
        return None, 0.0


async def _read_head(reader: asyncio.StreamReader) -> tuple[str, tuple[str, ...]] | None:
    try:
        text = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None
    first, *headers = text[:-4].split("\r\n")
    return first, tuple(headers)


def _header(headers: Sequence[str], name: str) -> str:
    return next((line.partition(":")[2].strip() for line in headers if line.partition(":")[0].lower() == name), "")


def _with_length(headers: Sequence[str], length: int) -> tuple[str, ...]:
    kept = [line for line in headers if line.partition(":")[0].lower() not in {"transfer-encoding", "content-length", "expect"}]
    return (*kept, f"Content-Length: {length}")


async def _read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> _Message | None:
    """The next request; None when the client is done."""
    head = await _read_head(reader)
    if head is None:
        return None
    first, headers = head
    if _header(headers, "expect").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await writer.drain()
    body = await _read_body(reader, headers)
    bare = not body and not _header(headers, "content-length")
    return _Message(first, headers if bare else _with_length(headers, len(body)), body)


async def _read_answer(reader: asyncio.StreamReader, *, head_only: bool) -> _Message:
    while True:
        head = await _read_head(reader)
        if head is None:
            raise ConnectionResetError("the server closed the connection")
        first, headers = head
        if not first.split(" ")[1].startswith("1"):
            break
    if head_only or first.split(" ")[1] in _NO_BODY:
        return _Message(first, headers, b"")
    body = await _read_body(reader, headers)
    return _Message(first, _with_length(headers, len(body)), body)


async def _read_body(reader: asyncio.StreamReader, headers: Sequence[str]) -> bytes:
    if _header(headers, "transfer-encoding").lower() != "chunked":
        return await reader.readexactly(int(_header(headers, "content-length") or 0))
    parts = []
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass
    return b"".join(parts)


async def _send_half(request: _Message, writer: asyncio.StreamWriter) -> None:
    writer.write(_head(request.first, request.headers) + request.body[: len(request.body) // 2])
    await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection with RST instead of an orderly close."""
    connection = writer.get_extra_info("socket")
    if connection is not None and not writer.is_closing():
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def _refusal(fault: NetworkFault) -> bytes:
    status, code = ("503 Slow Down", "SlowDown") if fault is NetworkFault.SLOW_DOWN else ("500 Internal Server Error", "InternalError")
    body = f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>injected</Message></Error>'.encode()
    headers = ("Content-Type: application/xml", f"Content-Length: {len(body)}")
    return _head(f"HTTP/1.1 {status}", headers) + body
