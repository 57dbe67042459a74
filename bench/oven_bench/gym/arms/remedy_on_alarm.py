"""Fixed rules: the same remedy at every alarm. Which is best is chosen on the training families, in the score."""

from __future__ import annotations

from oven_bench.fixed_rules import Alone, Change
from oven_bench.gym.arm import RuleArm
from oven_bench.gym.arms.alarm import Alarm
from oven_bench.gym.arms.remedies import REMEDIES, Knobs, Remedy
from oven_bench.gym.best_rule import RULE
from oven_core.protocol.messages import Observation, RunStarted


class OnAlarm:
    """A rule: the alarm goes off, the remedy is applied."""

    def __init__(self, remedy: Remedy) -> None:
        self._remedy = remedy

    def start(self, run: RunStarted) -> None:
        self._alarm, self._knobs = Alarm(run), Knobs(run)

    def look(self, observation: Observation) -> list[Change]:
        return self._remedy(self._knobs, observation.tick) if self._alarm.look(observation) else []


NOTHING = RuleArm("nothing", lambda _: Alone())
"""No controller: what every other arm is measured against."""


def fixed_rules() -> list[RuleArm]:
    """One for each remedy, named after it: `rule.cut_8`."""
    return [_at_alarms(name, remedy) for name, remedy in REMEDIES.items()]


def _at_alarms(name: str, remedy: Remedy) -> RuleArm:
    return RuleArm(f"{RULE}{name}", lambda _: OnAlarm(remedy))
