"""The wire between clients and model servers, over loopback.

Promises:
 1. Many requests at once on one connection; each gets its own answer, in any order.
 2. Errors arrive as the class they were, with all three parts; a server's bug arrives as `InfraError`.
 3. A cancelled caller, and a client that goes away, cancel the work on the server.
 4. A server that goes away fails everything pending at once (R8).
 5. A connection without the token is closed unheard; a wrong frame ends its own connection only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from cluster.channel import Answer, Channel, ChannelLost, ChannelServer, Door
from coevo.errors import InfraError, ModelError


class Oracle:
    """Answers `echo` after as many milliseconds as asked, raises on `bug`, refuses on `refuse`, never answers `hang`."""

    def __init__(self) -> None:
        self.running = 0
        self.changed = asyncio.Condition()

    async def __call__(self, method: str, arguments: Sequence[Any]) -> Answer:
        await self.count(1)
        try:
            if method == "bug":
                raise ZeroDivisionError("a bug")
            if method == "refuse":
                return Answer(None, ModelError("no", seen=("a", 1), fix="ask nicely"), 3, 0.5)
            await asyncio.sleep(3600 if method == "hang" else arguments[0] / 1000)
            return Answer(list(arguments), None, self.running, None)
        finally:
            await self.count(-1)

    async def count(self, change: int) -> None:
        """One more or one less is running."""
        async with self.changed:
            self.running += change
            self.changed.notify_all()

    async def until(self, count: int) -> None:
        """Wait until exactly `count` requests run."""
        async with asyncio.timeout(20), self.changed:
            await self.changed.wait_for(lambda: self.running == count)


async def opened() -> tuple[Oracle, ChannelServer, Door]:
    """A listening server."""
    oracle = Oracle()
    server = ChannelServer(oracle)
    return oracle, server, await server.listen("127.0.0.1")


async def test_many_requests_share_a_connection() -> None:
    """Promise 1: 200 requests, the later ones quicker; ids as large as seeds get survive."""
    _, server, door = await opened()
    channel = await Channel.connect(door)
    async with asyncio.timeout(60):
        answers = await asyncio.gather(*(channel.ask("echo", (200 - n) % 40, n, 2**63 - 1 - n, [n] * 300) for n in range(200)))
    assert [one.value[1:] for one in answers] == [[n, 2**63 - 1 - n, [n] * 300] for n in range(200)]
    channel.close()
    server.close()


async def test_errors_keep_their_class() -> None:
    """Promise 2."""
    _, server, door = await opened()
    channel = await Channel.connect(door)
    refused, bug = await channel.ask("refuse"), await channel.ask("bug")
    assert type(refused.error) is ModelError
    assert (refused.error.what, refused.error.seen, refused.error.fix) == ("no", "('a', 1)", "ask nicely")
    assert (refused.depth, refused.kv_use) == (3, 0.5)
    assert type(bug.error) is InfraError
    assert "ZeroDivisionError: a bug" in str(bug.error)
    assert (await channel.ask("echo", 0)).value == [0]
    channel.close()
    server.close()


async def test_whoever_leaves_takes_its_work_along() -> None:
    """Promise 3: first one caller, then a client with ten requests."""
    oracle, server, door = await opened()
    channel = await Channel.connect(door)
    asked = [asyncio.ensure_future(channel.ask("hang")) for _ in range(11)]
    await oracle.until(11)
    asked[0].cancel()
    await oracle.until(10)
    channel.close()
    await oracle.until(0)
    done = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(done[0], asyncio.CancelledError)
    assert all(isinstance(one, ChannelLost) for one in done[1:])
    with pytest.raises(ChannelLost):
        await channel.ask("echo", 0)
    server.close()


async def test_a_server_that_hangs_up_fails_what_is_pending() -> None:
    """R8, promise 4: a peer that closes without a word, as a killed process does."""

    async def vanish(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(200)
        writer.transport.abort()

    server = await asyncio.start_server(vanish, "127.0.0.1", 0)
    channel = await Channel.connect(Door("127.0.0.1", server.sockets[0].getsockname()[1], "token"))
    async with asyncio.timeout(20):
        done = await asyncio.gather(*(channel.ask("echo", 0) for _ in range(20)), return_exceptions=True)
    assert all(isinstance(one, ChannelLost) for one in done)
    assert channel.closed
    server.close()


@pytest.mark.parametrize(
    "hello", [b"", b"\x00\x00\x00\x05[1,2]", b"\xff\xff\xff\xff", b'\x00\x00\x00\x07"guess"', b"GET / HTTP/1.1\r\n\r\n"]
)
async def test_strangers_are_not_heard(hello: bytes) -> None:
    """Promise 5: wrong token, no token, too long, not our protocol: closed without an answer, and others are served on."""
    oracle, server, door = await opened()
    reader, writer = await asyncio.open_connection(door.host, door.port)
    writer.write(hello)
    writer.write_eof()
    async with asyncio.timeout(20):
        assert await reader.read() == b""
    writer.close()
    channel = await Channel.connect(door)
    assert (await channel.ask("echo", 0)).value == [0]
    stranger = await Channel.connect(door._replace(token="0" * 64))
    with pytest.raises(ChannelLost):
        await stranger.ask("echo", 0)
    assert oracle.running == 0
    channel.close()
    server.close()
