"""Fixed rules: the same remedy at every alarm. Which is best is chosen on the training families, in the score."""

from __future__ import annotations

from random import Random
from typing import ClassVar

from oven_bench.fixed_rules import Change, RuleLink
from oven_bench.gym.arms.alarm import Alarm
from oven_bench.gym.arms.remedies import REMEDIES, Knobs, Remedy
from oven_bench.gym.best_rule import RULE
from oven_controller.protocol.messages import Observation, RunStarted
from oven_learner.link.base import Link


class OnAlarm:
    """A rule: the alarm goes off, the remedy is applied."""

    def __init__(self, remedy: Remedy) -> None:
        self._remedy = remedy

    def start(self, run: RunStarted) -> None:
        self._alarm, self._knobs = Alarm(run), Knobs(run)

    def look(self, observation: Observation) -> list[Change]:
        return self._remedy(self._knobs, observation.tick) if self._alarm.look(observation) else []


class FixedRule:
    name: ClassVar[str]

    def link(self, run: str, rng: Random) -> Link:
        return RuleLink(OnAlarm(REMEDIES[self.name.removeprefix(RULE)]))


class Cut4(FixedRule):
    """The rate to a quarter."""

    name = "rule.cut_4"


class Cut8(FixedRule):
    """The rate to an eighth."""

    name = "rule.cut_8"


class Raise4(FixedRule):
    """The rate times four."""

    name = "rule.raise_4"


class Rollback(FixedRule):
    """Back to before the alarm, and nothing else."""

    name = "rule.rollback"


class RollbackCut8(FixedRule):
    """Back to before the alarm, at an eighth of the rate."""

    name = "rule.rollback_cut_8"


class RollbackSkip(FixedRule):
    """Back to before the alarm, and past the data that came then; on a run that cannot skip, back only."""

    name = "rule.rollback_skip"


class LowerWeightDecay(FixedRule):
    """The weight decay to an eighth."""

    name = "rule.lower_weight_decay"


class TightenClip(FixedRule):
    """The clipping threshold to an eighth."""

    name = "rule.tighten_clip"


class RaiseBeta(FixedRule):
    """The KL term's weight times four."""

    name = "rule.raise_beta"
