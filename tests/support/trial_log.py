"""A run with trials as the monitor and the folds may meet it: ordered by the real mesh, answered as a learner does."""

from __future__ import annotations

import math

from tests.support.mesh_log import LR
from tests.support.monitor_log import AGENTS, MAX_STEPS, METRICS, SPECS, Recording

from oven_core.protocol.events import Event
from oven_core.protocol.messages import Horizon, Observation, Receipt, RunStarted
from oven_core.protocol.rules import Rules
from oven_core.protocol.trial_messages import ArmReading, BranchObservation, TrialEnded, TrialStarted

READING = "eval/accuracy"


class TrialRecording(Recording):
    """Adds to Recording the learner's part in a trial, a step at a time."""

    def begin(self) -> None:
        message = RunStarted(
            **self.stamp(),
            recipe="grpo",
            horizon=Horizon(max_steps=MAX_STEPS),
            actuators=SPECS,
            metrics=METRICS,
            rules=Rules(silent_ticks=60, newcomers="full", trials="all", trial_share=0.3, trial_cooldown=2),
            trials=READING,
        )
        self.put("run", message)

    @property
    def order(self) -> TrialStarted:
        """The newest trial that the mesh ordered."""
        return next(o.message for o in reversed(self.outputs) if isinstance(o.message, TrialStarted))

    def try_out(self, value: float, actuator: str = LR) -> None:
        """A proposal that is tried at the next tick."""
        self.say(
            "lr", "propose", actuator, value=value, confidence=0.9, target="reward", expected_change=0.05,
            horizon=20, rationale="gradients undo one another", evidence=("symptom:slow_progress",),
        )  # fmt: skip
        if actuator != LR:
            self.say("prior", "for", actuator, confidence=0.8)
        self.observe(4)

    def branch(self, arm: int, count: int = 8, rise: float = 0.0, since: int = 0) -> None:
        """The steps `since` to `since` + `count` of an arm, in which the reward rises by so much a step."""
        start, level = self.mesh.state.tick, 0.15 + 0.8 * (1 - math.exp(-self.mesh.state.tick / 90))
        for n in range(since + 1, since + count + 1):
            metrics = {"reward": level + rise * n, "learning_rate": 2e-5 * (0.4 if arm else self.scale)}
            seen = BranchObservation(
                **self.stamp(), trial=self.order.id, arm=arm, tick=start + n, step=self.step + n, metrics=metrics
            )
            self.put("branch", seen)

    def end_trial(self, kept: int = 0, gain: float | None = 0.12, *, refused: str = "", rise: float = 0.01) -> None:
        """The learner's answer, the receipts, and the kept arm's steps as the run's."""
        order, tick, step = self.order, self.mesh.state.tick, self.step
        readings = (
            ArmReading(mean=0.5, error=0.03, examples=64),
            *(ArmReading(mean=0.5 + (gain or 0.0), error=0.03, examples=64, gain=gain, noise=0.021)
              for _ in order.arms[1:]),
        )  # fmt: skip
        fields = {"status": "refused", "reason": refused} if refused else {"status": "completed", "arms": readings}
        steps = 0 if refused else len(order.arms) * (order.steps + order.cooldown)
        ended = TrialEnded.model_validate(
            {
                **self.stamp(), "trial": order.id, "kept": kept, "tick": tick, "step": step, "steps": steps,
                "extra": max(0, steps - order.steps), "seconds": 3.14159, **fields,
            }
        )  # fmt: skip
        self.put("branch", ended)
        for index, arm in enumerate(order.arms):
            for decision, (actuator, value) in zip(arm.decisions, arm.changes.items(), strict=True):
                applied = index == kept and not refused
                if applied and actuator == LR:
                    assert isinstance(value, float)
                    self.scale = value
                answer = Receipt(
                    **self.stamp(), decision_id=decision, actuator=actuator, before=1.0 if applied else None,
                    after=value if applied else None, tick=tick, step=step,
                    status="applied" if applied else "skipped", reason="" if applied else "the trial kept the control",
                )  # fmt: skip
                self.put("receipt", answer)
        if not refused:
            self._go_on(order.steps, rise)

    def _go_on(self, steps: int, rise: float) -> None:
        """The kept arm's steps, as observations of the run."""
        start, level = self.mesh.state.tick, 0.15 + 0.8 * (1 - math.exp(-self.mesh.state.tick / 90))
        for n in range(1, steps + 1):
            self.step += 1
            metrics = {"reward": level + rise * n, "learning_rate": 2e-5 * self.scale}
            seen = Observation(
                **self.stamp(), tick=start + n, step=self.step, progress=self.step / MAX_STEPS, metrics=metrics
            )
            self.put("observation", seen)


def begun() -> TrialRecording:
    """A run in which a trial has just been ordered."""
    log = TrialRecording()
    for agent in AGENTS:
        log.join(agent, moves=tuple(spec.name for spec in SPECS), speciality=(LR,) if agent == "lr" else ())
    log.begin()
    log.observe(50)
    log.try_out(0.4)
    return log


def under_way() -> list[Event]:
    """The control is played, and of its only change five steps."""
    log = begun()
    log.branch(0, rise=-0.015)
    log.branch(1, 5, rise=0.01)
    return log.events


def two_trials() -> list[Event]:
    """One that kept its change, and one that did not."""
    log = begun()
    log.branch(0, rise=-0.015)
    log.branch(1, rise=0.01)
    log.end_trial(kept=1)
    log.observe(30)
    log.try_out(1.5)
    log.branch(0, rise=0.004)
    log.branch(1, rise=-0.02)
    log.end_trial(kept=0, gain=-0.043, rise=0.004)
    log.observe(10)
    return log.events
