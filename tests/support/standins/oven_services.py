"""Small real services for the stack's tests: a prior service, a committee member, a beating learner, a monitor."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from nats.aio.msg import Msg

import oven_learner as oven
from oven_core.bus.connection import Bus
from oven_core.protocol import names
from oven_core.protocol.committee_requests import ScoreReply, ScoreRequest
from oven_core.protocol.graph_requests import GraphInfo
from oven_core.protocol.messages import MetricSpec
from oven_core.security.credentials import Credentials
from oven_learner.rollback.memory_snapshots import Snapshots
from oven_runs.process.child_process import wait_until_released

BEAT_S = 0.04
STEERED_S = 0.2


def kg(_args: list[str]) -> int:
    """A prior service that knows one contradiction and one requirement."""
    info = GraphInfo(
        graph="0" * 64,
        nodes={"cause": 1},
        edges={"CAUSES": 1},
        isolated=0.0,
        contradictions=(("grad.clip", "optimizer.lr_scale:up"),),
        requirements=(("grad.clip", "metric:reward"),),
    )

    async def answer(bus: Bus, message: Msg) -> None:
        await bus.publish(message.reply, info.wire())

    return asyncio.run(_serve(names.kg("info"), answer))


def member(args: list[str]) -> int:
    """A member that scores by length."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True)
    name = parser.parse_args(args).name
    if not os.environ["OVEN_CREDS"].endswith(f"/{name}.nk"):
        return 3

    async def answer(bus: Bus, message: Msg) -> None:
        if message.data:  # empty: somebody only looks whether it is there
            request = ScoreRequest.model_validate_json(message.data)
            scores = {entry.id: min(1.0, len(entry.text) / 100) for entry in request.completions}
            await bus.publish(message.reply, ScoreReply(member=name, group=request.group, scores=scores).wire())

    return asyncio.run(_serve(names.reward(name), answer))


async def _serve(subject: str, answer: Callable[[Bus, Msg], Awaitable[None]]) -> int:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    credentials = Credentials.load(Path(os.environ["OVEN_CREDS"]))
    async with Bus.connect(os.environ["OVEN_URL"], credentials) as bus:

        async def handle(message: Msg) -> None:
            await answer(bus, message)

        await bus.subscribe(subject, handle)
        await bus.flush()
        await stop.wait()
    return 0


def learner(_args: list[str]) -> int:
    """The real client, 25 observations a second, until a file `finish` is in the run's folder or it is stopped."""
    return _beat(None)


def keeping_learner(_args: list[str]) -> int:
    """The same learner with snapshots, so that it can be rolled back."""
    step, snapshots = [0], list[int]()
    return _beat(Snapshots(lambda: (step[0], step[0]), snapshots.append))


def late_learner(_args: list[str]) -> int:
    """Waits for a file `begin` before it connects. One knob keeps its own value, and the setter of another kills it."""
    folder = Path(os.environ["OVEN_RUN_DIR"])
    while not (folder / "begin").exists():
        time.sleep(BEAT_S)
    stuck = [1.0]
    knobs = oven.Actuators()
    knobs.scalar("sampling.stuck", lambda: stuck[0], lambda _: stuck.__setitem__(0, 77.0), low=0.1, high=100.0)
    knobs.scalar("sampling.fatal", lambda: 1.0, lambda _: os._exit(9), low=0.1, high=10.0)
    return _beat(None, knobs)


def _beat(snapshots: Snapshots | None, knobs: oven.Actuators | None = None) -> int:
    wait_until_released()
    folder = Path(os.environ["OVEN_RUN_DIR"])
    clip = [1.0]
    knobs = knobs or oven.Actuators()
    knobs.scalar(
        "grad.clip", lambda: clip[0], lambda value: clip.__setitem__(0, value), low=0.1, high=10.0, scale="log"
    )
    with oven.connect(knobs, metrics=(MetricSpec(name="reward"),), recipe="toy", snapshots=snapshots) as client:
        step = 0
        while not (folder / "finish").exists() and not client.stopping:
            step += 1
            client.observe(step, {"reward": clip[0]})
            due = time.monotonic() + BEAT_S
            while time.monotonic() < due:
                client.poll()
                time.sleep(0.005)
    return 0


def steered(_args: list[str]) -> int:
    """The real client with a knob of each kind and snapshots to roll back to, five observations a second, until it is
    told to stop or a file `finish` is in the run's folder."""
    folder = Path(os.environ["OVEN_RUN_DIR"])
    state: dict[str, Any] = {"clip": 1.0, "warmth": 0.5, "mixture": {"easy": 0.5, "hard": 0.5}, "teacher": "small"}
    weights = [0]
    knobs = oven.Actuators()
    set_ = state.__setitem__
    knobs.scalar("grad.clip", lambda: state["clip"], partial(set_, "clip"), low=0.1, high=10.0, scale="log", risky=True)
    knobs.scalar("sampling.warmth", lambda: state["warmth"], partial(set_, "warmth"), low=0.0, high=2.0)
    knobs.simplex("data.mixture", lambda: state["mixture"], partial(set_, "mixture"))
    knobs.choice("teacher.active", lambda: state["teacher"], partial(set_, "teacher"), ("small", "large"))
    from oven_learner.rollback.memory_snapshots import Snapshots

    snapshots = Snapshots(lambda: (weights[0], weights[0]), lambda step: weights.__setitem__(0, step))
    metrics = (MetricSpec(name="reward"),)
    with oven.connect(knobs, metrics=metrics, recipe="toy", snapshots=snapshots, max_steps=100_000) as client:
        while not (folder / "finish").exists() and not client.stopping:
            weights[0] += 1
            client.observe(weights[0], {"reward": state["clip"]})
            due = time.monotonic() + STEERED_S
            while time.monotonic() < due and not client.stopping:
                client.poll()
                time.sleep(0.005)
    return 0


def monitor(_args: list[str]) -> int:
    """A monitor that reads a line from its terminal and ends as it says: `quit`, or `crash`."""
    print("monitor of", os.environ["OVEN_RUN"], os.path.exists(os.environ["OVEN_CREDS"]), flush=True)
    for line in sys.stdin:
        if line.strip() == "crash":
            return 7
        if line.strip() == "quit":
            break
    return 0
