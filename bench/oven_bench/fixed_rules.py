"""Baselines of the swarm: fixed rules in the trainer's own process, through the same client and knobs."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from oven_core.protocol.messages import Decision, Observation, RunStarted, Value
from oven_learner.link.link_interface import UnbuiltMessage
from oven_learner.testing import FakeLink

Change = tuple[str, Value]


class Rule(Protocol):
    """Sees what an agent sees, and returns changes that apply from the next step on."""

    def start(self, run: RunStarted) -> None: ...
    def look(self, observation: Observation) -> list[Change]: ...


class Alone:
    """No controller."""

    def start(self, run: RunStarted) -> None: ...

    def look(self, observation: Observation) -> list[Change]:
        return []


class Blind:
    """A blind schedule: an even mixture and one factor on the learning rate, from the first step on.

    `factor` did best on the draws for development (docs/experiments.md), not on those that are reported.
    """

    def __init__(self, factor: float = 0.5) -> None:
        self._changes: list[Change] = [("optimizer.lr_scale", factor)]

    def start(self, run: RunStarted) -> None:
        mixture = next(spec for spec in run.actuators if spec.name == "data.mixture")
        self._changes.append(("data.mixture", {name: 1 / len(mixture.choices) for name in mixture.choices}))

    def look(self, observation: Observation) -> list[Change]:
        changes, self._changes = self._changes, []
        return changes


class Plateau:
    """Halves the learning rate when the mean reward has not risen by `least` for `patience` steps.

    This is ReduceLROnPlateau with a factor of 0.5 instead of torch's 0.1, which is kinder to a short run.
    """

    metric, sign = "reward", 1

    def __init__(self, patience: int = 10, factor: float = 0.5, least: float = 0.01) -> None:
        self._patience, self._factor, self._least = patience, factor, least
        self._best = float("-inf")
        self._bad = 0
        self._scale = 1.0
        self._recent: deque[float] = deque(maxlen=5)  # one step's reward is noise

    def start(self, run: RunStarted) -> None: ...

    def look(self, observation: Observation) -> list[Change]:
        if self.metric not in observation.metrics:
            return []
        self._recent.append(self.sign * observation.metrics[self.metric])
        mean = sum(self._recent) / len(self._recent)
        if mean > self._best + self._least:
            self._best, self._bad = mean, 0
            return []
        self._bad += 1
        if self._bad < self._patience:
            return []
        self._bad = 0
        self._scale = max(self._scale * self._factor, 0.01)
        return [("optimizer.lr_scale", self._scale)]


class PlateauOfLoss(Plateau):
    """The same for a loss that has not fallen. Its noise is larger than its fall in 10 steps, hence the patience."""

    metric, sign = "loss", -1

    def __init__(self, patience: int = 30, factor: float = 0.5, least: float = 0.01) -> None:
        super().__init__(patience, factor, least)


class RuleLink(FakeLink):
    """A link with a rule at the other end instead of a bus. Its changes apply one step later, as votes do."""

    def __init__(self, rule: Rule) -> None:
        super().__init__()
        self.last_metrics: dict[str, float] = {}
        self.changes: list[tuple[int, str, Value]] = []
        """The rule's changes: (tick, actuator, value)."""
        self._rule = rule

    def send(self, unbuilt: UnbuiltMessage) -> None:
        super().send(unbuilt)
        message = self.sent[-1]
        if isinstance(message, RunStarted):
            self._rule.start(message)
        elif isinstance(message, Observation):
            self.last_metrics.update(message.metrics)
            for index, (actuator, value) in enumerate(self._rule.look(message)):
                self.changes.append((message.tick, actuator, value))
                self.incoming.append(_decision(message.tick, index, actuator, value))


def _decision(tick: int, index: int, actuator: str, value: Value) -> Decision:
    return Decision(
        id=f"{tick:012d}-{index:02d}",
        ballot="",
        actuator=actuator,
        verdict="adopted",
        value=value,
        reason="a fixed rule",
        tally=(),
        tick=tick,
        apply_at_tick=tick + 1,
        expires_at_tick=tick + 10,
    )
