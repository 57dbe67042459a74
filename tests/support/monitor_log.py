"""A run as the monitor may meet it, decided by the real mesh: rises, a spike, a NaN, a veto, evidence, a
rollback, a hold, an agent that cannot fire, one that falls silent, and noise on the bus. The same events every time."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta
from typing import Any

from tests.support.mesh_log import LR, MEASURED_KINDS, Log

from oven_core.protocol.actuators import ACTUATORS
from oven_core.protocol.events import Event
from oven_core.protocol.evidence import Signal
from oven_core.protocol.messages import (
    ActuatorSpec,
    Decision,
    Horizon,
    MetricSpec,
    Observation,
    Receipt,
    RunEnded,
    RunStarted,
    Vote,
)
from oven_core.protocol.rules import Rules

AGENTS = ("curriculum", "lr", "prior", "supervisor-with-a-long-name", "teacher")
SPECS = (
    ActuatorSpec(
        name="data.mixture", kind="simplex", choices=("len3", "len4"), value={"len3": 0.5, "len4": 0.5}, low=0, high=1
    ),
    ActuatorSpec(
        name=LR,
        kind="scalar",
        scale="log",
        low=0.01,
        high=100,
        value=1.0,
        risky=True,
        unit="× the schedule",
    ),
    ACTUATORS["run.hold"],
    ActuatorSpec(name="run.rollback", kind="action", unit="tick to go back to", effect="moves_weights"),
)
METRICS = (
    MetricSpec(name="reward", better="up"),
    MetricSpec(name="learning_rate", unit="of this step"),
    MetricSpec(name="grad_norm"),
    MetricSpec(name="entropy"),
    MetricSpec(name="kl"),
    MetricSpec(name="eval/accuracy", better="up", held_out=True, ceiling=1.0),
)
MAX_STEPS = 240


class Recording(Log):
    """Appends a learner's measurements to a Log. A tick is a second."""

    def __init__(self) -> None:
        super().__init__(stride=1)
        self.scale, self.step = 1.0, 0

    def put(self, subject: str, body: Any) -> Any:
        emitted = super().put(subject, body)
        since = timedelta(seconds=self.mesh.state.tick, milliseconds=self.seq % 100)
        self.events = [
            replace(event, time=event.time + since) if event.seq == self.seq else event for event in self.events
        ]
        return emitted

    def begin(self) -> None:
        message = RunStarted(
            **self.stamp(),
            recipe="grpo",
            horizon=Horizon(max_steps=MAX_STEPS),
            actuators=SPECS,
            metrics=METRICS,
            rules=Rules(silent_ticks=60, newcomers="full", alone={"lr": (LR,)}),
        )
        self.put("run", message)

    def observe(self, count: int = 1) -> None:
        for _ in range(count):
            self.step += 1
            tick = self.mesh.state.tick + 1
            wave = math.sin(tick * 2.4) * math.cos(tick * 0.7)
            level = 0.15 + 0.8 * (1 - math.exp(-tick / 90))
            metrics = {
                "reward": level + 0.06 * wave,
                "learning_rate": 2e-5 * self.scale,
                "grad_norm": 1.1 + 0.4 * wave + (9.0 if tick == 77 else 0.0),
                "entropy": math.nan if tick in (120, 121, 122) else 1.2 - level + 0.05 * wave,
                "kl": 0.02 * level + 0.004 * abs(wave),
            }
            if self.step % 20 == 0:
                metrics["eval/accuracy"] = level - 0.05
            progress = min(1.0, self.step / MAX_STEPS)
            self.put(
                "observation",
                Observation(**self.stamp(), tick=tick, step=self.step, progress=progress, metrics=metrics),
            )
            self._apply(tick)

    def _apply(self, tick: int) -> None:
        """Answer each adopted decision when it is due, as a learner does."""
        answered = {e.body.decision_id for e in self.events if isinstance(e.body, Receipt)}
        for decision in self.decisions:
            if decision.verdict != "adopted" or decision.id in answered or decision.apply_at_tick > tick:
                continue
            after, status = decision.value, "applied"
            if decision.actuator == LR:
                assert isinstance(decision.value, float)
                self.scale = decision.value
            elif decision.actuator == "run.rollback":
                self.step = max(0, self.step - 15)
                after = float(self.step)
            elif decision.actuator == "data.mixture":
                after, status = decision.before, "rejected"
            message = Receipt(
                **self.stamp(),
                decision_id=decision.id,
                actuator=decision.actuator,
                status=status,
                before=decision.before,
                after=after,
                tick=tick,
                step=self.step,
                reason="" if status == "applied" else "the sampler of this trainer cannot be changed",
            )
            self.put("receipt", message)

    def say(self, agent: str, stance: Any, actuator: str = LR, **more: Any) -> None:
        signal = Signal(MEASURED_KINDS[AGENTS.index(agent) % len(MEASURED_KINDS)], (f"metric of {agent}",))
        more["evidence"] = (*more.get("evidence", ()), signal.entry)
        vote = Vote(actuator=actuator, stance=stance, tick=self.mesh.state.tick, **more)
        self.put(f"vote.{agent}", vote)


def recorded() -> list[Event]:
    log = Recording()
    for agent in AGENTS:
        log.join(agent, moves=tuple(spec.name for spec in SPECS))
    log.begin()
    log.status("teacher", "cannot_fire", reason="no teacher is announced: teacher.active is absent")
    log.observe(12)
    log.say(
        "lr",
        "propose",
        value=4.0,
        confidence=0.9,
        target="reward",
        expected_change=0.05,
        horizon=20,
        rationale="gradients agree with their running mean (cosine 0.51 over 6 ticks): optimizer.lr_scale 1 → 4",
        evidence=("symptom:slow_progress",),
    )
    log.say(
        "prior",
        "for",
        confidence=0.6,
        rationale="slow progress with aligned gradients is most often a step that is too small",
        evidence=(
            "symptom:slow_progress",
            "slow_progress ← CAUSES ← lr_too_low ← SOLVES ← raise_lr (grade A)",
            "kg:3f5a9c0d1e2b4a67",
        ),
    )
    log.observe(30)
    log.say("curriculum", "propose", "data.mixture", value={"len3": 0.3, "len4": 0.7}, confidence=0.6)
    log.say("prior", "for", "data.mixture", confidence=0.6, rationale="len3 is solved")
    log.observe(30)
    log.put("vote.lr", b'{"v": 1, "type": "Vote", "stance": "maybe"}')
    log.observe(10)
    log.say("lr", "propose", value=2.0, confidence=0.9, rationale="grad_norm 10.1, its median 1.2")
    log.say("prior", "against", confidence=0.8, rationale="one spike is noise: 1 of 82 ticks")
    log.observe(20)
    log.say("prior", "propose", "run.rollback", value=60.0, confidence=0.6, rationale="reward fell below its start")
    log.say("lr", "for", "run.rollback", confidence=0.7, rationale="as above")
    log.observe(40)
    log.operator("one", "hold")
    log.obeyed("one")
    log.operator("two", "resume")
    log.obeyed("two")
    log.observe(10)
    log.say(
        "supervisor-with-a-long-name",
        "propose",
        value=3.0,
        confidence=0.5,
        rationale="three words\x1b[31m\nin red 猫" * 9,
    )
    log.say("curriculum", "abstain", confidence=0.1)
    log.observe(1)
    return log.events


def ended() -> list[Event]:
    """Return the same run to its end."""
    log = Recording()
    log.join("lr", moves=(LR,))
    log.begin()
    log.observe(MAX_STEPS)
    end = RunEnded(**log.stamp(), reason="completed", tick=MAX_STEPS, step=MAX_STEPS, metrics={"eval/accuracy": 0.9})
    log.put("run", end)
    return log.events


def decided(events: list[Event]) -> list[Decision]:
    return [event.body for event in events if isinstance(event.body, Decision)]
