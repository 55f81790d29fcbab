"""The wire between a client and a model server: one TCP connection, many requests at once.

A framework's actor call costs milliseconds of CPU on both ends; a turn of a small model costs about twenty. So tokens travel here, and
Ray keeps placement, health and discovery. Frames are a 4-byte length and a JSON array; nothing is unpickled. The first frame of a
connection must be the server's token, which clients get through Ray. Either side's death closes the connection, and every request on it
fails at once.

Frames: `[id, method, arguments...]` asks, `["cancel", id]` takes it back, `[id, value, error, depth, kv_use]` answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import itertools
import secrets
import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import orjson

import coevo.errors
from coevo.errors import CoevoError, InfraError, root_traceback

__all__ = ["Answer", "Channel", "ChannelLost", "ChannelServer", "Door"]

_LENGTH = struct.Struct(">I")
_MAX_FRAME_BYTES = 64 << 20
_CANCEL = "cancel"
_CONNECT_TIMEOUT_S = 10.0


class Door(NamedTuple):
    """Where a server listens, and the token it wants to see. Travels through Ray only."""

    host: str
    port: int
    token: str


class Answer(NamedTuple):
    """What came back: a JSON value or an error, and how loaded the server is."""

    value: Any
    error: CoevoError | None
    depth: int
    kv_use: float | None


class ChannelLost(Exception):
    """The connection is gone; what was asked on it may or may not have been done."""


class ChannelServer:
    """Accepts connections and answers their requests concurrently.

    Args:
        answer: Called with (method, arguments). Cancelled when the client takes the request back or goes away.
    """

    def __init__(self, answer: Callable[[str, Sequence[Any]], Awaitable[Answer]]) -> None:
        self._answer = answer
        self._token = secrets.token_hex(32)
        self._server: asyncio.Server | None = None

    async def listen(self, host: str) -> Door:
        """Bind a free port of `host` and accept from now on."""
        self._server = await asyncio.start_server(self._serve, host, 0)
        return Door(host, int(self._server.sockets[0].getsockname()[1]), self._token)

    def close(self) -> None:
        """Stop accepting."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks: dict[int, asyncio.Task[None]] = {}
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                hello = await _read(reader)
            if not isinstance(hello, str) or not hmac.compare_digest(hello, self._token):
                return
            while True:
                frame = await _read(reader)
                if frame[0] == _CANCEL:
                    task = tasks.pop(frame[1], None)
                    if task is not None:
                        task.cancel()
                    continue
                number = int(frame[0])
                tasks[number] = asyncio.create_task(self._reply(number, frame[1], frame[2:], writer, tasks))
        except (OSError, EOFError, TimeoutError, ValueError, LookupError):
            return
        finally:
            for task in tasks.values():
                task.cancel()
            writer.close()

    async def _reply(
        self, number: int, method: str, arguments: Sequence[Any], writer: asyncio.StreamWriter, tasks: dict[int, asyncio.Task[None]]
    ) -> None:
        try:
            answer = await self._answer(method, arguments)
        except Exception as error:  # noqa: BLE001 - a client waits for every request: it must hear of whatever went wrong
            answer = Answer(None, InfraError("the model server failed", seen=root_traceback(error), fix="retry elsewhere"), 0, None)
        tasks.pop(number, None)
        if not writer.is_closing():
            writer.write(_frame([number, answer.value, _error_fields(answer.error), answer.depth, answer.kv_use]))


class Channel:
    """A client's connection. Belongs to the event loop it was opened in."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count(1)
        self._pending: dict[int, asyncio.Future[Answer]] = {}
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def connect(cls, door: Door) -> Channel:
        """Open a connection. Raises `OSError` or `TimeoutError` when nobody listens."""
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(door.host, door.port)
        writer.write(_frame(door.token))
        return cls(reader, writer)

    @property
    def closed(self) -> bool:
        """Whether the connection is known to be gone."""
        return self._listening.done() or self._writer.is_closing()

    async def ask(self, method: str, *arguments: Any) -> Answer:
        """One request. Cancelling the caller takes it back.

        Raises:
            ChannelLost: The connection is gone.
        """
        if self.closed:
            raise ChannelLost("the connection is closed")
        number = next(self._numbers)
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._pending[number] = future
        self._writer.write(_frame([number, method, *arguments]))
        try:
            return await future
        except asyncio.CancelledError:
            if not self.closed:
                self._writer.write(_frame([_CANCEL, number]))
            raise
        finally:
            self._pending.pop(number, None)

    def close(self) -> None:
        """Hang up; what is pending fails."""
        self._writer.close()
        self._listening.cancel()

    async def _listen(self) -> None:
        try:
            while True:
                number, value, error, depth, kv_use = await _read(self._reader)
                future = self._pending.get(number)
                if future is not None and not future.done():
                    future.set_result(Answer(value, _error_from(error), depth, kv_use))
        except (OSError, EOFError, ValueError):
            return
        finally:
            self._writer.close()
            for future in self._pending.values():
                if not future.done():
                    future.set_exception(ChannelLost("the server hung up"))


async def _read(reader: asyncio.StreamReader) -> Any:
    (size,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if size > _MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {size} bytes")
    return orjson.loads(await reader.readexactly(size))


def _frame(content: Any) -> bytes:
    data = orjson.dumps(content)
    return _LENGTH.pack(len(data)) + data


def _error_fields(error: CoevoError | None) -> list[str | None] | None:
    if error is None:
        return None
    seen = error.seen if error.seen is None or isinstance(error.seen, str) else repr(error.seen)
    return [type(error).__name__, error.what, seen, error.fix]


def _error_from(fields: list[str | None] | None) -> CoevoError | None:
    """The error a server described: one of our own classes, by name."""
    if fields is None:
        return None
    name, what, seen, fix = fields
    kind = getattr(coevo.errors, name or "", InfraError)
    with contextlib.suppress(TypeError):
        if issubclass(kind, CoevoError):
            return kind(what or "", seen=seen, fix=fix or "")
    return InfraError(what or "", seen=seen, fix=fix or "")
