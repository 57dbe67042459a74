"""`bench replay`: how fast a run's log is computed again, signatures apart.

The log is a busy run's: 25 metrics a tick, four agents that propose, agree, object and say that they are done, ballots,
decisions and receipts as a mesh made them, and messages that are none. It is exported and replayed as `replay RUN` does
it, from the file on. Beside it the same bytes are only decoded, and as the floor each line is only parsed by `json`.
Times are the thread's own (on-CPU), the best of interleaved rounds; the exit code is 1 if the replay is not byte-equal.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

from typer import Option

from oven_bench.bench_command import Bench, Json
from oven_core.files import atomic_file
from oven_core.mesh.state_machine import Mesh
from oven_core.protocol import names
from oven_core.protocol.codec import decode
from oven_core.protocol.events import Event
from oven_core.protocol.messages import (
    ActuatorSpec,
    AgentStatus,
    Decision,
    Message,
    MetricSpec,
    Observation,
    Receipt,
    RunEnded,
    RunStarted,
    Vote,
)
from oven_core.protocol.rules import Rules
from oven_core.security.signing import Keyring
from oven_runs.access import log_reader, log_sources
from oven_runs.home.run_folder import RunFolder
from oven_runs.log.replay import Replay, ReplayReport

RUN: Final = "bench"
METRICS: Final = 25
AGENTS: Final = ("curriculum", "learning_rate", "divergence", "teacher")
KNOBS: Final = ("grad.clip", "grpo.beta", "optimizer.lr_scale")
ROUNDS: Final = 3


def busy_run(size: int, seed: int = 0) -> Iterator[Event]:
    """The events of a run of at least `size`: what learner and agents said, and a mesh's outputs where it made them."""
    draw, mesh, seq = random.Random(seed), Mesh(RUN), 0
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    said: list[tuple[str, Message | bytes]] = []
    n = 0

    def mine() -> dict[str, int]:
        nonlocal n
        n += 1
        return {"incarnation": 1, "n": n - 1}

    def flush() -> Iterator[Event]:
        nonlocal seq
        while said:
            subject, body = said.pop(0)
            seq += 1
            data = body if isinstance(body, bytes) else body.wire()
            event = Event.read(seq, f"oven.{RUN}.{subject}", data, noon)
            for output in mesh.step(event):
                said.append((output.subject.split(".", 2)[2], output.message))
                if isinstance(output.message, Decision) and output.message.verdict == "adopted":
                    said.append(("receipt", _receipt(output.message, mine())))
            yield event

    bounds: dict[str, Any] = {"kind": "scalar", "scale": "log", "low": 0.01, "high": 100, "value": 1.0}
    knobs = tuple(ActuatorSpec(name=k, moves_own_metric=k == "grpo.beta", **bounds) for k in KNOBS)
    metrics = tuple(MetricSpec(name=f"group_{i % 5}/metric_{i}") for i in range(METRICS))
    rules = Rules(max_interventions=10**9, newcomers="full")
    said.append(("run", RunStarted(**mine(), recipe="bench", actuators=knobs, metrics=metrics, rules=rules)))
    said += [(f"agent.{agent}", AgentStatus(state="joined", moves=KNOBS, version="1")) for agent in AGENTS]
    tick = 0
    while seq < size:
        yield from flush()
        tick += 1
        values = {metric.name: draw.gauss(0, 1) * 10 ** draw.randint(-6, 3) for metric in metrics}
        said.append(("observation", Observation(**mine(), tick=tick, step=tick, progress=0.5, metrics=values)))
        yield from flush()
        if tick % 5 == 0:
            knob = draw.choice(KNOBS)
            for agent in draw.sample(AGENTS, 3):
                said.append((f"vote.{agent}", _vote(draw, knob, tick)))
        if tick % 10 == 0:
            done = AgentStatus(state="done", tick=tick, seen=f"{seq:012d}-00")
            said += [(f"agent.{agent}", done) for agent in AGENTS]
        if tick % 50 == 0:
            said.append(
                (f"vote.{draw.choice(AGENTS)}", draw.choice([b"{}", b'{"v":2,"type":"Vote"}', b"\x00\xff nothing"]))
            )
    said.append(("run", RunEnded(**mine(), reason="completed", tick=tick, step=tick)))
    yield from flush()


def _vote(draw: random.Random, knob: str, tick: int) -> Vote:
    against = draw.random() < 0.2
    return Vote(
        actuator=knob,
        stance="against" if against else "propose",
        value=None if against else draw.choice([0.3, 0.5, 2.0]),
        tick=tick,
        target="group_0/metric_0",
        expected_change=draw.gauss(0, 1),
        horizon=20,
        confidence=draw.uniform(0.5, 0.9),
        rationale=f"the loss went from {draw.random():.3f} to {draw.random():.3f} within 20 ticks, more than its noise",
        evidence=("symptom:loss_spike",),
    )


def _receipt(decision: Decision, mine: dict[str, int]) -> Receipt:
    return Receipt(
        **mine,
        decision_id=decision.id,
        actuator=decision.actuator,
        status="applied",
        before=decision.before,
        after=decision.value,
        tick=decision.apply_at_tick,
        step=decision.apply_at_tick,
    )


def measure(size: int, folder: RunFolder) -> dict[str, Any]:
    folder.path.mkdir(parents=True)
    with atomic_file(folder.export) as out:
        for event in busy_run(size):
            out.write(event.line().encode() + b"\n")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    report = asyncio.run(_replayed(folder))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
    stored = [(names.kind(event.subject), event.data) for event in log_sources.exported(folder)]
    lines = folder.export.read_bytes().splitlines()
    times: dict[str, list[float]] = {"replay": [], "decode": [], "json": []}
    for _ in range(ROUNDS):
        times["replay"].append(_seconds(lambda: asyncio.run(_replayed(folder))))
        times["decode"].append(_seconds(lambda: [decode(kind, data) for kind, data in stored]))
        times["json"].append(_seconds(lambda: [json.loads(line) for line in lines]))
    best = {what: min(taken) for what, taken in times.items()}
    return {
        "events": report.events,
        "events_per_s": round(report.events / best["replay"]),
        "decode_events_per_s": round(report.events / best["decode"]),
        "json_events_per_s": round(report.events / best["json"]),
        "same": report.same,
        "decisions": report.decisions,
        "bytes": folder.export.stat().st_size,
        "memory_grown_mb": round(grown / 1024, 1),
        "rounds": ROUNDS,
    }


async def _replayed(folder: RunFolder) -> ReplayReport:
    again, keyring = Replay(folder.run), Keyring(check=False)
    async for event in log_reader.raw_events(folder, exact=True):
        again.take(keyring.verify(event))
    return again.report()


def _seconds(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


def bench(
    events: Annotated[int, Option(min=1, metavar="N", help="Events in the log.")] = 100_000, as_json: Json = False
) -> int:
    with tempfile.TemporaryDirectory() as scratch:
        found = measure(events, RunFolder(Path(scratch) / RUN))
    if as_json:
        print(json.dumps(found))
    else:
        print(
            f"{found['events']:,} events ({found['bytes'] / 1e6:.0f} MB, {found['decisions']:,} decisions): "
            f"{found['events_per_s']:,} a second replayed, {found['decode_events_per_s']:,} only decoded, "
            f"{found['json_events_per_s']:,} only parsed; "
            f"{'byte-equal' if found['same'] else 'NOT byte-equal'}; {found['memory_grown_mb']} MB more memory"
        )
    return 0 if found["same"] else 1


BENCH = Bench(
    "replay", bench, "How fast a run's log is computed again, beside decoding and parsing it alone.", "--events 10000"
)
