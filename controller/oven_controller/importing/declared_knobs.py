"""Knobs that a user declares with `--knob NAME[=VALUE]` because an imported log has none. Agents can then vote on
them. Their kinds and bounds are those that an attached run announces for the same values. Their values never change."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from oven_core.errors import ConfigError
from oven_core.protocol.actuators import ACTUATORS, ROLLBACK
from oven_core.protocol.messages import ActuatorSpec

LOW_FACTOR, HIGH_FACTOR = 0.1, 3.0
"""Bounds of a knob as multiples of the user's value."""
MAX_DECAY_FACTOR = 10.0
"""Upper bound of weight decay, as a multiple of the user's value."""
LR_SCALE = "optimizer.lr_scale"
LEARNING_RATE = "learning_rate"
ASSUMED_KNOBS = (LR_SCALE, ROLLBACK, "data.skip")
"""Knobs that a review assumes in an imported run. Other programs do not log them, and the user need not set a value."""
VOTABLE_KNOBS = {
    name: spec
    for name, spec in ACTUATORS.items()
    if spec.effect not in ("ends_or_holds", "at_end") and spec.kind != "choice"
}
"""Knobs on which agents can vote in a finished run. Knobs with choices are not among them: logs do not list choices."""
_DEFAULT_VALUES = {
    LR_SCALE: 1.0,
    "optimizer.weight_decay": 0.01,
    "grad.clip": 1.0,
    "grpo.epsilon": 0.2,
    "grpo.epsilon_high": 0.28,
    "rloo.epsilon": 0.2,
    "dpo.beta": 0.1,
    "distillation.beta": 0.5,
    "reward.calibration": 0.5,
}
"""Default values of scalar knobs. Other scalars need a value from the user."""
_COMPONENT_METRICS = {"reward.weights": "rewards/*/mean", "data.mixture": "reward/*"}
"""For each simplex, a pattern of metric names, in which `*` stands for the name of a component."""


@dataclass(frozen=True, slots=True)
class Knob:
    """A knob that the user declared."""

    name: str
    value: str = ""
    """The value from the command line; empty for the default."""

    def spec(self, metrics: Collection[str] = ()) -> ActuatorSpec:
        """Return the announcement of the knob in a run with these metrics. Raises ConfigError for an invalid value."""
        spec = VOTABLE_KNOBS[self.name]
        if spec.kind == "action":
            if self.value:
                raise ConfigError(f"--knob {self.name}={self.value}: actions take no value; write --knob {self.name}")
            return spec
        return self._simplex_spec(spec, metrics) if spec.kind == "simplex" else self._scalar_spec(spec)

    def _scalar_spec(self, spec: ActuatorSpec) -> ActuatorSpec:
        try:
            value = float(self.value or _DEFAULT_VALUES.get(self.name, ""))
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value > 0):
            raise ConfigError(f"--knob {self.name}: the value must be a number above 0, as in --knob {self.name}=0.1")
        low, high = LOW_FACTOR * value, HIGH_FACTOR * value
        match self.name:
            case "optimizer.weight_decay":
                scale, low, high = "linear", 0.0, MAX_DECAY_FACTOR * value
            case "reward.calibration":
                scale, low, high = "linear", 0.0, 1.0
            case "distillation.beta":
                scale, high = "linear", min(high, 1 - LOW_FACTOR * (1 - value))  # below 1 if the value is
            case _:
                scale, low, high = "log", round(low, 9), round(high, 9)
        return spec.model_copy(update={"scale": scale, "low": low, "high": high, "value": value})

    def _simplex_spec(self, spec: ActuatorSpec, metrics: Collection[str]) -> ActuatorSpec:
        """Return the simplex with equal shares for all components that have a metric."""
        pattern = _COMPONENT_METRICS[self.name]
        prefix, _, suffix = pattern.partition("*")
        matches = [metric for metric in metrics if fnmatchcase(metric, pattern)]
        components = sorted(metric.removeprefix(prefix).removesuffix(suffix) for metric in matches)
        if self.value:
            raise ConfigError(f"--knob {self.name} takes no value; write --knob {self.name}")
        if len(components) < 2:
            raise ConfigError(f"--knob {self.name} needs at least two metrics named {pattern}; omit the option")
        shares = dict.fromkeys(components, 1 / len(components))
        return spec.model_copy(update={"low": 0.0, "high": 1.0, "choices": tuple(components), "value": shares})


def parse_knobs(options: Iterable[str]) -> list[Knob]:
    """Parse `--knob NAME[=VALUE]`. If a name is repeated, the last value counts. Raises ConfigError."""
    knobs: dict[str, Knob] = {}
    for option in options:
        name, _, value = option.partition("=")
        if name not in VOTABLE_KNOBS:
            matches = difflib.get_close_matches(name, VOTABLE_KNOBS, n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(matches)}?" if matches else f"known knobs: {', '.join(VOTABLE_KNOBS)}"
            raise ConfigError(f"--knob {name or repr(option)} is not a known knob; {hint}")
        knobs[name] = Knob(name, value)
        if name not in _COMPONENT_METRICS:
            knobs[name].spec()  # reports an invalid value before the source is read
    return list(knobs.values())


def announced_actuators(knobs: Iterable[Knob], metrics: Collection[str]) -> tuple[ActuatorSpec, ...]:
    """Return the knobs to announce: the declared ones, and the learning rate scale if the learning rate was logged."""
    by_name = {knob.name: knob for knob in knobs}
    if LEARNING_RATE in metrics:
        by_name = {LR_SCALE: Knob(LR_SCALE)} | by_name
    return tuple(knob.spec(metrics) for knob in by_name.values())
