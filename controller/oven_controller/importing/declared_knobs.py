"""Declare actuators with `--knob NAME[=VALUE]` for a log without any, so that agents can vote on them.

Their kinds and bounds match what an attached run announces for the same value. Their values never change.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from oven_core.errors import ConfigError
from oven_core.protocol.actuator_names import ACTUATORS, ROLLBACK
from oven_core.protocol.messages import ActuatorSpec

LOW, HIGH = 0.1, 3.0
"""Bounds of a knob as multiples of the user's value."""
DECAY = 10.0
"""Upper bound of weight decay, as a multiple of the user's value."""
SCALE = "optimizer.lr_scale"
RATE = "learning_rate"
ASSUMED = (SCALE, ROLLBACK, "data.skip")
"""Actuators of an attached run with known initial values that other programs do not log. The last one needs a mixture
of datasets."""
KNOWN = {
    name: spec
    for name, spec in ACTUATORS.items()
    if spec.effect not in ("ends_or_holds", "at_end") and spec.kind != "choice"
}
"""Actuators on which agents can vote in a finished run. Actuators with choices that no log names are excluded."""
_VALUES = {
    SCALE: 1.0,
    "optimizer.weight_decay": 0.01,
    "grad.clip": 1.0,
    "grpo.epsilon": 0.2,
    "grpo.epsilon_high": 0.28,
    "rloo.epsilon": 0.2,
    "dpo.beta": 0.1,
    "distillation.beta": 0.5,
    "reward.calibration": 0.5,
}
"""Default values of scalars. Scalars that are not listed have none."""
_COMPONENTS = {"reward.weights": "rewards/*/mean", "data.mixture": "reward/*"}
"""Patterns of the metrics that are the default components of a simplex."""


@dataclass(frozen=True, slots=True)
class Knob:
    """A declared actuator."""

    name: str
    value: str = ""
    """The value from the command line; empty for the default."""

    def spec(self, metrics: Collection[str] = ()) -> ActuatorSpec:
        """Return the announcement in a run with these metrics. Raises ConfigError for a missing or wrong value."""
        known = KNOWN[self.name]
        if known.kind == "action":
            if self.value:
                raise ConfigError(f"--knob {self.name}={self.value}: an action has no value; write --knob {self.name}")
            return known
        return self._simplex(known, metrics) if known.kind == "simplex" else self._scalar(known)

    def _scalar(self, known: ActuatorSpec) -> ActuatorSpec:
        try:
            value = float(self.value or _VALUES.get(self.name, ""))
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value > 0):
            raise ConfigError(f"--knob {self.name} needs the run's value, above 0: write e.g. --knob {self.name}=0.1")
        low, high = LOW * value, HIGH * value
        match self.name:
            case "optimizer.weight_decay":
                scale, low, high = "linear", 0.0, DECAY * value
            case "reward.calibration":
                scale, low, high = "linear", 0.0, 1.0
            case "distillation.beta":
                scale, high = "linear", min(high, 1 - (1 - value) * LOW)
            case _:
                scale, low, high = "log", round(low, 9), round(high, 9)
        return known.model_copy(update={"scale": scale, "low": low, "high": high, "value": value})

    def _simplex(self, known: ActuatorSpec, metrics: Collection[str]) -> ActuatorSpec:
        """Return equal shares of the components that have a metric."""
        pattern = _COMPONENTS[self.name]
        prefix, _, suffix = pattern.partition("*")
        names = sorted(n.removeprefix(prefix).removesuffix(suffix) for n in metrics if fnmatchcase(n, pattern))
        if len(names) < 2 or self.value:
            raise ConfigError(f"--knob {self.name} has no value and needs two metrics {pattern}: omit it")
        shares = dict.fromkeys(names, 1 / len(names))
        return known.model_copy(update={"low": 0.0, "high": 1.0, "choices": tuple(names), "value": shares})


def declared(texts: Iterable[str]) -> list[Knob]:
    """Parse `--knob NAME[=VALUE]`. For repeated names the last one counts. Raises ConfigError."""
    knobs: dict[str, Knob] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name not in KNOWN:
            near = difflib.get_close_matches(name, KNOWN, n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(KNOWN)}"
            raise ConfigError(f"--knob {name or repr(text)} is not a knob that agents know; {hint}")
        knobs[name] = Knob(name, value)
        if name not in _COMPONENTS:
            knobs[name].spec()  # report a wrong value before anything is read
    return list(knobs.values())


def announced(knobs: Iterable[Knob], metrics: Collection[str]) -> tuple[ActuatorSpec, ...]:
    """Return the announced actuators: the declared knobs, and the learning rate scale if the rate was logged."""
    by_name = {knob.name: knob for knob in knobs}
    if RATE in metrics:
        by_name = {SCALE: Knob(SCALE)} | by_name
    return tuple(knob.spec(metrics) for knob in by_name.values())
