"""`bench notifications`: how soon a message leaves, and what addresses cost that take none.

The notifier runs as the stack runs it, as a process with the monitor's key, over a real server and its history; the log
is written by a generator, and the addresses are HTTP servers of this machine. Latency is from the moment at which the
server has confirmed an event to the moment at which the request has arrived. In the second part thousands of events
that are each worth a message come at once, while of four addresses one takes messages, one refuses connections, one
never answers, and one answers with an error of a megabyte; after a while all of them do.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import statistics
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import psutil
from typer import Option

from oven_bench.bench_command import Bench, Json, print_object
from oven_bench.performance.monitor import RUN, Generator, Meter, logged_run
from oven_bench.performance.webhook_server import Posted, Reply, WebhookServer
from oven_controller.notify import cursor, saved_addresses
from oven_controller.stack.plan import own_command
from oven_core.bus.connection import Bus
from oven_core.errors import ProcessError
from oven_core.protocol.messages import Decision, Observation, Receipt, TallyLine
from oven_runs.home.run_folder import Home, RunFolder
from oven_runs.settings.model import Settings
from oven_runs.settings.notifications import NotifySettings

LR = "optimizer.lr_scale"
ROUNDS_OF = ("advice", "applied", "rollback", "held", "judge", "budget")
"""Kinds of message in a round: each is sent at once, for no other of its kind was sent in the last minute."""
WAIT_S = 20.0


class Events(Generator):
    """A log that is worth messages."""

    async def decided(self, verdict: str, actuator: str = LR) -> Decision:
        """A decision with a proposal behind it."""
        self.n += 1
        line = TallyLine(agent="lr", stance="propose", value=0.5, weight=0.9, rationale="as measured")
        decision = Decision.model_validate(
            {
                "id": f"{self.n:012d}-00", "ballot": "", "actuator": actuator, "verdict": verdict, "value": 0.5,
                "before": 1.0, "reason": "as measured", "tally": (line,), "tick": self.tick,
                "apply_at_tick": self.tick + 1, "expires_at_tick": self.tick + 100,
            }
        )  # fmt: skip
        await self._say(self.on.decision(decision.id), decision.wire())
        return decision

    async def received(self, decision_id: str, actuator: str) -> None:
        """The learner's receipt."""
        receipt = Receipt(
            **self._learner(), decision_id=decision_id, actuator=actuator, status="applied", before=1.0, after=0.5,
            tick=self.tick, step=self.tick, reason="" if decision_id else "as asked",
        )  # fmt: skip
        await self._say(self.on.receipt, receipt.wire())

    async def measured(self, **kinds: float) -> None:
        """A step in which a judge scored nothing."""
        self.tick += 1
        metrics = {"committee/skipped_groups": 0.0} | {f"rewards/critic/abstain/{kind}": n for kind, n in kinds.items()}
        seen = Observation(**self._learner(), tick=self.tick, step=self.tick, progress=0.1, metrics=metrics)
        await self._say(self.on.observation, seen.wire())

    async def worth(self, kind: str) -> None:
        """One message of that kind."""
        match kind:
            case "advice":
                await self.decided("advised")
            case "applied" | "rollback":
                actuator = LR if kind == "applied" else "run.rollback"
                await self.received((await self.decided("adopted", actuator)).id, actuator)
            case "held":
                await self.received("", "run.hold")
            case "judge":
                await self.measured(timeout=4.0)
            case _:
                await self.measured(budget=4.0)


@contextlib.asynccontextmanager
async def _notifier(folder: RunFolder, urls: Sequence[str]) -> AsyncIterator[psutil.Process]:
    """The process, once it has read the log."""
    settings = saved_addresses.save(folder.path, NotifySettings.model_validate({"to": urls}))
    folder.config.write_text(Settings(notify=settings).model_dump_json())
    cursor.save(folder.path, cursor.Cursor())
    before = cursor.written(folder.path)
    with (folder.logs / "notify.log").open("wb") as out:
        process = subprocess.Popen(
            own_command("notify"), env=os.environ | {"OVEN_RUN_DIR": str(folder.path)}, stdout=out, stderr=out
        )
    try:
        await _until(lambda: cursor.written(folder.path) != before, "the notifier read the log", 60)
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait)


async def _until(true: Callable[[], object], what: str, limit_s: float = WAIT_S) -> None:
    deadline = time.monotonic() + limit_s
    while not true():
        if time.monotonic() > deadline:
            raise ProcessError(f"not within {limit_s:g} s: {what}")
        await asyncio.sleep(0.01)


async def latency(home: Home, rounds: int) -> dict[str, Any]:
    """From an event to its message, each kind once a round, at times that the notifier's looks do not know."""
    delays: list[float] = []
    draw = random.Random(0)
    for number in range(rounds):
        folder = home.create(RUN, "bench")
        async with logged_run(folder) as bus:
            with WebhookServer() as server:
                async with _notifier(folder, [server.url]):
                    events = await _begun(bus)
                    for kind in ROUNDS_OF:
                        await asyncio.sleep(draw.random())
                        await events.worth(kind)
                        await bus.head(RUN)
                        logged = time.time()
                        await _until(lambda: kind in _kinds(server.posted), f"{kind} arrived")  # noqa: B023
                        delays.append(next(one.at for one in server.posted if kind in _kinds([one])) - logged)
        folder.path.rename(folder.path.with_name(f"round-{number}"))
    return {
        "latency_p50_s": round(statistics.median(delays), 3),
        "latency_max_s": round(max(delays), 3),
        "messages": len(delays),
    }


async def cost(home: Home, seconds: float) -> dict[str, Any]:
    """CPU of the notifier while nothing worth a message happens."""
    folder = home.create("cost", "bench").path.rename(home.path / "runs" / RUN)
    async with logged_run(RunFolder(folder)) as bus:
        with WebhookServer() as server:
            async with _notifier(RunFolder(folder), [server.url]) as process:
                events = await _begun(bus)
                found = {}
                for hz in (20, 500):
                    meter = Meter(process.pid)
                    await events.at(hz, seconds, decide=False)
                    found[f"cpu_percent_{hz}hz"] = meter.percent()
    folder.rename(folder.with_name("cost"))
    return found


async def outage(home: Home, count: int, outage_s: float) -> dict[str, Any]:
    """Thousands of events at once, with addresses that take no message for `outage_s`."""
    folder = home.create(RUN, "bench")
    refusing = _free_port()
    async with logged_run(folder) as bus, contextlib.AsyncExitStack() as around:
        names = ("takes", "hangs", "fails")
        replies = (Reply(), Reply(hangs=True), Reply(500, b"x" * 1_000_000))
        servers = {name: around.enter_context(WebhookServer(r)) for name, r in zip(names, replies, strict=True)}
        urls = [*(server.url for server in servers.values()), f"http://127.0.0.1:{refusing}"]
        process = await around.enter_async_context(_notifier(folder, urls))
        events = await _begun(bus)
        rss, began = process.memory_info().rss, time.monotonic()
        for number in range(count):
            await events.worth("advice" if number % 5 == 0 else "applied")
            if number % 200 == 0:
                await bus.flush()
                await asyncio.sleep(0.02)
        head, written = await bus.head(RUN), time.monotonic() - began
        await _until(lambda: (cursor.load(folder.path) or cursor.Cursor()).seq >= head, "all of it is read", 120)
        read = time.monotonic() - began
        while time.monotonic() - began < outage_s:
            await asyncio.sleep(0.5)
        for server in servers.values():
            server.reply = Reply()
        servers["refuses"] = around.enter_context(WebhookServer(port=refusing))
        told = {name: 0 for name in servers}

        def all_told() -> bool:
            told.update({name: _told(server.posted) for name, server in servers.items()})
            return all(number >= count for number in told.values())

        with contextlib.suppress(ProcessError):  # then it shows in what is lost
            await _until(all_told, "all of it is told", 240)
        grown, cpu = process.memory_info().rss - rss, process.cpu_times()
    said = (folder.logs / "notify.log").read_text().splitlines()
    return {
        "events": count,
        "written_s": round(written, 1),
        "read_s": round(read, 1),
        "memory_grown_mb": round(grown / 2**20, 1),
        "cpu_s": round(cpu.user + cpu.system, 2),
        "cursor_bytes": (folder.path / saved_addresses.FOLDER / cursor.NAME).stat().st_size,
        "lines_logged": len(said),
        **{f"lost_{name}": count - told[name] for name in servers},
        **{f"attempts_{name}": len(server.posted) for name, server in servers.items()},
        **{f"most_a_kind_and_minute_{name}": _densest(server.posted) for name, server in servers.items()},
    }


async def _begun(bus: Bus) -> Events:
    events = Events(bus)
    await events.begin()
    await events.observe()
    await bus.flush()
    return events


def _kinds(posted: Sequence[Posted]) -> list[str]:
    return [one.json["kind"] for one in posted]


def _told(posted: Sequence[Posted]) -> int:
    """Events that messages which were taken tell of."""
    return sum(1 + one.json["merged"] for one in list(posted) if one.taken)


def _densest(posted: Sequence[Posted]) -> int:
    """The most requests of one kind that came within a minute (less half a second, for they travel)."""
    times = Counter[str]()
    for one in posted:
        kind = one.json["kind"]
        beside = (other for other in posted if kind in _kinds([other]) and 0 <= other.at - one.at < 59.5)
        times[kind] = max(times[kind], sum(1 for _ in beside))
    return max(times.values(), default=0)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def bench(
    rounds: Annotated[int, Option(min=1, help="Rounds of one message of each kind, for the latency.")] = 5,
    events: Annotated[int, Option(min=10, help="Events at once, each worth a message.")] = 10_000,
    outage_s: Annotated[float, Option(help="Seconds for which three of four addresses take nothing.")] = 100,
    seconds: Annotated[float, Option(help="Seconds of each measurement of CPU.")] = 10,
    as_json: Json = False,
) -> int:
    with tempfile.TemporaryDirectory() as scratch:
        found = asyncio.run(latency(Home(Path(scratch) / "latency"), rounds))
        found |= asyncio.run(cost(Home(Path(scratch) / "cost"), seconds))
        found |= asyncio.run(outage(Home(Path(scratch) / "outage"), events, outage_s))
    print_object(found, as_json)
    return 0


BENCH = Bench(
    "notifications", bench, "from an event to its message, and what dead and slow addresses cost", "--events 1000"
)
