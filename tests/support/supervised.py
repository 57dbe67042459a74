"""A live run with the agent `supervisor` in it: the real server, mesh, prior service and hosts of agents, and a learner
that says what it is told to, in lockstep."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.learner_side import RUN, Server, serving, until
from tests.support.scripted_conversation import ChatMessage, ChatRequest

from oven_agents.runtime.agent_host import host
from oven_agents.sdk.agent import Agent
from oven_agents.sdk.agent_session import Session
from oven_agents.sdk.window import Window
from oven_core.bus.connection import Bus
from oven_core.cancellation import end
from oven_core.protocol.events import Event
from oven_core.protocol.messages import (
    ActuatorSpec,
    Horizon,
    LearnerMessage,
    MetricSpec,
    Observation,
    RunEnded,
    RunStarted,
    StepClosed,
    Vote,
)
from oven_core.protocol.names import Subjects
from oven_core.protocol.rules import Rules
from oven_core.replica.replica_process import serve, serve_history
from oven_core.security.credentials import Credentials
from oven_kg.checked_graph import load
from oven_kg.service.endpoints import PriorService
from oven_kg.service.service_process import run_service as serving_graph
from oven_llm.diagnosis.supervisor_agent import Supervisor

ON = Subjects(RUN)
KEY = "sk-canary-5e1d"
ONSET, TICKS = 61, 80
"""The rate is ten times as high from the one on; the run's last tick."""
SCALE = "optimizer.lr_scale"


class Steady(Agent):
    """Another agent: proposes by the loss alone, every ten ticks. `order`: what it tells whoever reads its reasons."""

    def __init__(self, order: str = "") -> None:
        self._order = order

    needs = ("loss",)
    moves = ("own.knob",)

    def vote(self, window: Window) -> Vote | None:
        if window.tick % 10:
            return None
        mean = sum(window.series("loss", last=10)) / 10
        why = f"the loss is {mean:.4g}" + (f" ORDER {self._order}" if self._order else "")
        return window.propose("own.knob", round(mean, 6), confidence=0.7, why=why, target="loss")


def started(**rules: Any) -> RunStarted:
    return RunStarted(
        incarnation=1,
        n=0,
        recipe="made up",
        horizon=Horizon(max_steps=200),
        lockstep=True,
        rules=Rules(autonomy="advise", **rules),
        actuators=(
            ActuatorSpec(name=SCALE, kind="scalar", scale="log", low=0.1, high=3.0, value=1.0),
            ActuatorSpec(name="own.knob", kind="scalar", scale="log", low=0.1, high=10, value=1.0),
        ),
        metrics=(
            MetricSpec(name="loss", better="down"),
            MetricSpec(name="learning_rate"),
            MetricSpec(name="optim/update_ratio"),
        ),
    )


def observed(tick: int) -> Observation:
    """Return the steps of a run whose rate rises tenfold at ONSET, followed by its loss."""
    off = ((tick * 7919) % 101 - 50) / 50  # the same scatter in every run
    high = tick >= ONSET
    metrics = {
        "loss": 2.0 + math.exp(-tick / 15) + 0.05 * off + 0.02 * high * (tick - ONSET),
        "learning_rate": 0.03 if high else 0.003,
        "optim/update_ratio": (0.05 if high else 0.005) * (1 + 0.05 * off),
    }
    return Observation(incarnation=1, n=tick, tick=tick, step=tick, progress=tick / 200, metrics=metrics)


def program(code: str) -> Callable[[ChatRequest], ChatMessage]:
    """Return a model that always writes this program."""
    return lambda request: ChatMessage("assistant", f"I see.\n```repl\n{code}\n```")


HONEST = f"""\
first = next(a for a in context["alarms"] if a["symptom"] == "update_ratio_high")
proof = evidence(first["metric"], first["onset"], first["raised"])
FINAL({{"cause": "lr_too_high", "evidence": [proof], "knob": "{SCALE}", "value": 0.1,
       "revert_if": {{"metric": "loss", "above": 4.0}}, "confidence": 0.8}})"""


def settings(base_url: str, model: str = "m", **more: Any) -> dict[str, Any]:
    """Return the run's settings as `up` resolves them."""
    named = {"provider": "compatible", "model": model, "base_url": base_url, "key_env": "OVEN_TEST_KEY"}
    return {"supervisor": {"model": named, "every": 1, "expires": 60, **more}}


class LiveRun:
    """Wait before each tick until the mesh has closed the one before."""

    def __init__(self, server: Server, bus: Bus, supervisor: Supervisor | None, folder: Path) -> None:
        self.server, self.supervisor, self.folder = server, supervisor, folder
        self._bus, self._tick = bus, 0
        self._closed = asyncio.Event()
        self._closed_tick = -1

    async def follow(self) -> None:
        async for event in self._bus.read(RUN, subjects=[ON.step("*")]):
            if isinstance(event.body, StepClosed):
                self._closed_tick = event.body.tick
                self._closed.set()

    async def ticks(self, last: int) -> None:
        while self._tick < last:
            self._tick += 1
            await say(self._bus, ON.observation, observed(self._tick))
            while self._closed_tick < self._tick:
                self._closed.clear()
                await self._closed.wait()

    async def answered(self) -> None:
        """Wait until the first diagnosis is done, whether or not the supervisor has read it."""
        await until((self.folder / "diagnoses" / "001" / "outcome.json").exists)

    async def end(self) -> list[Event]:
        """Return the whole log, which stays in the run's folder as `up` exports it."""
        await say(
            self._bus,
            ON.run,
            RunEnded(incarnation=1, n=self._tick + 1, reason="completed", tick=self._tick, step=self._tick),
        )
        events = await self.server.events()
        (self.folder / "log.jsonl").write_text("".join(f"{event.line()}\n" for event in events))
        return events


def _said_by(name: str) -> Callable[[Event], bool]:
    return lambda event: event.subject == ON.agent(name)


async def say(bus: Bus, subject: str, message: LearnerMessage) -> None:
    await bus.append(subject, message.wire(), message_id=f"{message.incarnation}-{message.n}")


@contextlib.asynccontextmanager
async def live_run(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    config: dict[str, Any] | Callable[[], dict[str, Any]] | None,
    *,
    order: str = "",
) -> AsyncIterator[LiveRun]:
    """`config`: the run's settings; None: a run without a supervisor. `order`: as Steady
    says it. Each agent has a host of its own."""
    config = config() if callable(config) else config  # an endpoint's address is known once it is served
    run_folder = folder / RUN
    run_folder.mkdir(parents=True)
    (run_folder / "config.json").write_text(json.dumps(config or {}))
    monkeypatch.setenv("OVEN_RUN_DIR", str(run_folder))
    monkeypatch.setenv("OVEN_TEST_KEY", KEY)
    supervisor = Supervisor() if config is not None else None
    agents: dict[str, Agent] = {"steady": Steady(order), **({"supervisor": supervisor} if supervisor else {})}
    async with (
        serving(folder, tuple(agents)) as server,
        server.bus("mesh") as mesh,
        server.bus("history") as history,
        server.bus() as bus,
        serving_graph(bus, PriorService(load())),
    ):
        await serve_history(history, RUN)
        run = LiveRun(server, bus, supervisor, run_folder)
        tasks = [asyncio.create_task(serve(mesh, RUN))]
        await say(bus, ON.run, started(shadow=("supervisor",) if supervisor else ()))
        for name, agent in agents.items():
            key = Credentials.load(server.creds(name))
            tasks.append(asyncio.create_task(host([Session(agent, name)], server.url, RUN, key)))
            await server.logged(_said_by(name))
        tasks.append(asyncio.create_task(run.follow()))
        try:
            yield run
        finally:
            await end(*tasks)
