"""Rates tried on branches for a few steps each, stage by stage, after AutoLRS (Jin et al. 2021, arXiv 2105.10762).

The paper searches each stage's rate by Bayesian optimization over ten branches of a tenth of the stage each, and
forecasts from them the validation loss at the stage's end, so that a stage costs twice its steps. Here a stage is
shorter than one of the paper's branches: a grid around the present rate stands for the search, and the held-out reading
at the branch's end for the forecast. The proportion is the paper's: branches cost as many steps as the stage.
"""

from __future__ import annotations

from collections import deque
from random import Random

from oven_core.protocol.messages import LearnerMessage, LogMessage, Observation, Receipt, RunStarted
from oven_core.protocol.trial_messages import TrialArm, TrialStarted
from oven_learner.link.link_interface import Link, Make
from oven_learner.link.resume_state import ResumeState
from oven_learner.link.samples import Parcel

RATE = "optimizer.lr_scale"
FACTORS = (0.25, 0.5, 2.0, 4.0)
"""Of the present rate, beside that itself."""
STAGE, TRIED = 40, 8
"""Steps of a stage, and of each branch: four branches more than the one that is kept are 32 steps for 40."""
FIRST = 20
"""The tick of the first search: the warm-up of the user's own is over."""
EXPIRES_TICKS = 3


class Stages:
    """A link that orders one trial at the beginning of each stage."""

    dropped = 0

    def __init__(self) -> None:
        self._inbox: deque[LogMessage] = deque()
        self._scale, self._bounds, self._reading = 1.0, (0.0, 0.0), ""
        self._next = FIRST

    def open(self) -> ResumeState:
        return ResumeState()

    def begin(self) -> None:
        pass

    def send(self, make: Make, *, droppable: bool = False) -> None:
        self._hear(make())

    def show(self, make: Parcel) -> None:
        pass

    def receive(self) -> LogMessage | None:
        return self._inbox.popleft() if self._inbox else None

    def close(self, timeout_s: float) -> bool:
        return True

    def _hear(self, message: LearnerMessage) -> None:
        match message:
            case RunStarted():
                spec = next((spec for spec in message.actuators if spec.name == RATE), None)
                self._reading = message.trials if spec is not None else ""
                if spec is not None and spec.low is not None and spec.high is not None:
                    self._bounds = spec.low, spec.high
            case Observation() if self._reading and message.tick >= self._next:
                self._next = message.tick + STAGE
                self._inbox.append(self._search(message.tick))
            case Receipt(status="applied", actuator="optimizer.lr_scale", after=float(scale)):
                self._scale = scale
            case _:
                pass

    def _search(self, tick: int) -> TrialStarted:
        low, high = self._bounds
        scales = {min(max(self._scale * factor, low), high) for factor in FACTORS} - {self._scale}
        arms = [TrialArm(decisions=(f"{tick}-{scale:.4g}",), changes={RATE: scale}) for scale in sorted(scales)]
        return TrialStarted(
            id=f"stage-{tick}",
            tick=tick,
            expires_at_tick=tick + EXPIRES_TICKS,
            arms=(TrialArm(), *arms),
            steps=TRIED,
            reading=self._reading,
            margin=0.0,
        )


class AutoRate:
    """The arm. Its branches are charged: an episode ends after as many gradient steps as any other's."""

    name = "autolrs"
    tries = True

    def link(self, run: str, rng: Random) -> Link:
        return Stages()


AUTOLRS = AutoRate()
