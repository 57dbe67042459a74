"""The baseline of `bench latency`: the same hops between as many processes, with bare messages and no decisions.

    learner ─ relay.step ─► N agents ─ relay.vote ─► mesh, which answers the N-th ─ relay.decision ─► learner

It uses core NATS only. A message is a number with padding. The learner's side looks for messages every 5 ms, which the
real link did, too, before it had a doorbell.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections import Counter, deque
from pathlib import Path

from oven_core.bus import Msg
from oven_core.bus.connection import Bus
from oven_core.cpu_affinity import yield_cpu_to_training
from oven_core.errors import ProcessError
from oven_core.security.credentials import Credentials
from oven_runs.process.child_process import Child, follow_parent

STEP, VOTE, DECISION = "relay.step", "relay.vote", "relay.decision"
SIZES = {STEP: 624, VOTE: 209, DECISION: 1070}
"""Bytes of the observation, the vote and the decision in `bench latency`, without headers."""
_NUMBER = 12


def packed(subject: str, number: int) -> bytes:
    return f"{number:0{_NUMBER}d}".encode().ljust(SIZES[subject], b" ")


def unpacked(data: bytes) -> int:
    return int(data[:_NUMBER])


async def start(url: str, creds: Path, agents: int, per_process: int, logs: Path) -> list[Child]:
    """Start one process for the mesh, and one for each `per_process` agents."""
    env = {"OVEN_URL": url, "OVEN_CREDS": str(creds)}
    roles = [
        ("mesh", agents),
        *[("agent", min(per_process, agents - first)) for first in range(0, agents, per_process)],
    ]
    return [
        await Child.start(
            f"relay-{index}",
            [sys.executable, "-P", "-m", "oven_bench.performance.relay_baseline", role, str(count)],
            logs / f"relay-{index}.log",
            env=env,
        )
        for index, (role, count) in enumerate(roles)
    ]


class RelayLink:
    """The learner's side: a thread with the connection, which polls."""

    def __init__(self, url: str, credentials: Credentials, poll_s: float) -> None:
        self._url, self._credentials, self._poll_s = url, credentials, poll_s
        self._outbox: deque[int] = deque()
        self._inbox: deque[int] = deque()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="relay-link", daemon=True)
        self._thread.start()

    def send(self, number: int) -> None:
        self._outbox.append(number)

    def receive(self) -> int | None:
        try:
            return self._inbox.popleft()
        except IndexError:
            return None

    def wait(self, timeout_s: float) -> int:
        """Wait until a number came back through all relays, and return it. Raises ProcessError."""
        deadline, number = time.monotonic() + timeout_s, 0
        while time.monotonic() < deadline:
            number += 1
            self.send(number)
            time.sleep(0.1)
            while (back := self.receive()) is not None:
                if back == number:
                    return number
        raise ProcessError(f"nothing came through the relay within {timeout_s:g} s")

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    async def _serve(self) -> None:
        async def receive(message: Msg) -> None:
            self._inbox.append(unpacked(message.data))

        async with Bus.connect(self._url, self._credentials) as bus:
            await bus.subscribe(DECISION, receive)
            await bus.flush()
            while not self._closing.is_set():
                if self._outbox:
                    await bus.publish(STEP, packed(STEP, self._outbox.popleft()))
                else:
                    await asyncio.sleep(self._poll_s)


async def _agents(bus: Bus, count: int) -> None:
    async def receive(message: Msg) -> None:
        for _ in range(count):
            await bus.publish(VOTE, packed(VOTE, unpacked(message.data)))

    await bus.subscribe(STEP, receive)


async def _mesh(bus: Bus, agents: int) -> None:
    votes: Counter[int] = Counter()

    async def receive(message: Msg) -> None:
        number = unpacked(message.data)
        votes[number] += 1
        if votes[number] == agents:
            del votes[number]
            await bus.publish(DECISION, packed(DECISION, number))

    await bus.subscribe(VOTE, receive)


async def _main(role: str, count: int) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with Bus.connect(os.environ["OVEN_URL"], Credentials.load(Path(os.environ["OVEN_CREDS"]))) as bus:
        await (_mesh(bus, count) if role == "mesh" else _agents(bus, count))
        await stop.wait()


if __name__ == "__main__":
    follow_parent()
    yield_cpu_to_training()
    asyncio.run(_main(sys.argv[1], int(sys.argv[2])))
