"""What a hostile agent may try with a bare socket: floods of connections and subscriptions, silence, nonsense."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import nkeys
import pytest
from tests.support.attack import attacked, plain, unchanged
from tests.support.honest_run import HOSTILE, ON, TICKS, HonestRun, Hostile, Played

from oven_core.protocol.history_requests import HistoryRequest

__all__ = ["plain"]  # a fixture


async def test_subscriptions_without_end(tmp_path: Path, plain: Played) -> None:
    async def attack(run: HonestRun, evil: Hostile, step: int) -> None:
        if step % 8 != 1:
            return
        reader, writer = await bare(run)
        for n in range(3000):
            writer.write(f"SUB _INBOX_.{HOSTILE}.{n} {n}\r\n".encode())
        writer.write(b"PING\r\n")
        await writer.drain()
        reply = await reader.readuntil(b"PONG\r\n")
        assert b"maximum subscriptions exceeded" in reply.lower(), reply[-300:]
        await gone(writer)

    async with attacked(tmp_path, attack) as (played, _, _):
        unchanged(played, plain)


async def test_a_client_that_never_reads_its_replies_harms_no_run(tmp_path: Path, plain: Played) -> None:
    held: list[asyncio.StreamWriter] = []

    async def attack(run: HonestRun, evil: Hostile, step: int) -> None:
        if step % 6 != 1:
            return
        _, writer = await bare(run)
        held.append(writer)
        request = HistoryRequest(limit=1024).wire()
        for subject in (ON.observation, ON.decision("*"), f"_INBOX_.{HOSTILE}.>"):
            writer.write(f"SUB {subject} {subject}\r\n".encode())
        for _ in range(20):
            writer.write(f"PUB {ON.history} _INBOX_.{HOSTILE}.x {len(request)}\r\n".encode() + request + b"\r\n")
        await writer.drain()

    async with attacked(tmp_path, attack) as (played, _, _):
        unchanged(played, plain)
    assert len(held) == 4


async def test_a_hundred_connections_with_one_key_and_a_storm_of_new_ones(tmp_path: Path, plain: Played) -> None:
    held: list[asyncio.StreamWriter] = []

    async def attack(run: HonestRun, evil: Hostile, step: int) -> None:
        for n in range(20):
            wrong = n % 4 == 3
            reader, writer = await bare(run, signature=b"x" * 64 if wrong else None)
            if wrong:
                assert b"Authorization Violation" in await reader.readline()
            if wrong or n % 4:
                await gone(writer)
            else:
                held.append(writer)

    async with attacked(tmp_path, attack) as (played, _, _):
        unchanged(played, plain)
    assert len(held) == 5 * TICKS


async def test_bytes_that_are_no_protocol(tmp_path: Path, plain: Played) -> None:
    garbage = [b"\x00" * 4096, b"CONNECT {", b"PUB " + b"x" * 8192, b"HPUB a 9999999999 1\r\n", b"SUB\r\n", b"-ERR\r\n"]
    garbage += [
        b"PUB oven.r.vote.evil 99999999\r\n",
        b"PUB oven.r.vote.evil -1\r\nx\r\n",
        b"INFO {}\r\n",
        b"RS+ a b\r\n",
    ]

    async def attack(run: HonestRun, evil: Hostile, step: int) -> None:
        for data in garbage:
            for authenticated in (True, False):
                reader, writer = await bare(run) if authenticated else await opened(run)
                writer.write(data + b"\r\n")
                with contextlib.suppress(ConnectionError):
                    await writer.drain()
                if authenticated:
                    with contextlib.suppress(OSError):
                        await reader.read(4096)
                await gone(writer)

    async with attacked(tmp_path, attack) as (played, _, _):
        unchanged(played, plain)


@pytest.fixture(autouse=True)
async def sockets() -> AsyncIterator[None]:
    yield
    while _sockets:
        await gone(_sockets.pop())


_sockets: list[asyncio.StreamWriter] = []


async def gone(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def opened(run: HonestRun) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", run.server.port, limit=1 << 20)
    _sockets.append(writer)
    return reader, writer


async def bare(run: HonestRun, signature: bytes | None = None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A socket that has said who it is, with the hostile agent's key, and has read no more than the greeting."""
    reader, writer = await opened(run)
    greeting = json.loads((await reader.readline()).removeprefix(b"INFO "))
    key = nkeys.from_seed(bytearray(run.key(HOSTILE).seed))
    signed = signature or key.sign(greeting["nonce"].encode())
    hello = {
        "verbose": False, "pedantic": False, "protocol": 1, "headers": True, "nkey": key.public_key.decode(),
        "sig": base64.urlsafe_b64encode(signed).decode().rstrip("="), "name": "evil", "lang": "x", "version": "1",
    }  # fmt: skip
    writer.write(b"CONNECT " + json.dumps(hello).encode() + b"\r\n")
    await writer.drain()
    return reader, writer
