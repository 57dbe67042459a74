"""Actuators (`--knob NAME[=VALUE]`) for a log that names none, so that agents can answer on them.

Bounds and kinds are those that an attached run announces for the same value. Nothing can turn them any more.
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
DECAY, MOST_DECAY = 10.0, 0.5
"""The upper bound of weight decay: so many times the user's own, and at least this."""
SCALE = "optimizer.lr_scale"
RATE = "learning_rate"
ASSUMED = (SCALE, ROLLBACK, "data.skip")
"""What an attached run has by default (the last with a mixture of datasets), and no log names. All of
them begin at a known value."""


KNOWN = {name: spec for name, spec in ACTUATORS.items() if spec.effect not in ("ends_or_holds", "at_end")}
"""What agents can still answer about in a run that is over."""
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
"""What a scalar is where no value is given. Those of the others have to be given."""
_COMPONENTS = {"reward.weights": "rewards/*/mean", "data.mixture": "reward/*"}
"""A simplex's components are the metrics of this pattern, where none are given."""


@dataclass(frozen=True, slots=True)
class Knob:
    """One that was asked for. `given` is its value as it was written; empty: none was."""

    name: str
    given: str = ""

    def spec(self, metrics: Collection[str] = ()) -> ActuatorSpec:
        """What is announced of it in a run with these metrics. Raises ConfigError where its value has to be given."""
        known = KNOWN[self.name]
        if known.kind == "action":
            if self.given:
                raise ConfigError(
                    f"--knob {self.name}={self.given}: it is an action and has no value; leave {self.given} out"
                )
            return known
        if known.kind == "choice":
            return self._choice(known)
        return self._simplex(known, metrics) if known.kind == "simplex" else self._scalar(known)

    def _scalar(self, known: ActuatorSpec) -> ActuatorSpec:
        value = _VALUES.get(self.name)
        if self.given:
            try:
                value = float(self.given)
            except ValueError:
                value = math.nan
        if value is None:
            raise ConfigError(f"--knob {self.name} needs the value that the run had: write e.g. --knob {self.name}=0.1")
        if not (math.isfinite(value) and value > 0):
            raise ConfigError(f"--knob {self.name}={self.given}: write a number above 0, e.g. --knob {self.name}=0.1")
        bounds: dict[str, str | float]
        if self.name == "optimizer.weight_decay":
            bounds = {"scale": "linear", "low": 0.0, "high": max(DECAY * value, MOST_DECAY)}
        elif self.name == "reward.calibration":
            bounds = {"scale": "linear", "low": 0.0, "high": 1.0}
        elif self.name == "distillation.beta":
            bounds = {"scale": "linear", "low": LOW * value, "high": min(HIGH * value, 1 - (1 - value) * LOW)}
        else:
            bounds = {"scale": "log", "low": round(LOW * value, 9), "high": round(HIGH * value, 9)}
        return ActuatorSpec.model_validate(known.model_dump() | bounds | {"value": value})

    def _choice(self, known: ActuatorSpec) -> ActuatorSpec:
        choices = tuple(filter(None, self.given.split(",")))
        if len(choices) < 2:
            raise ConfigError(
                f"--knob {self.name} needs its values, the weakest first and the run's own in front of a colon: write "
                f"e.g. --knob {self.name}=small:small,medium,large"
            )
        own, _, first = choices[0].rpartition(":")
        choices = (first, *choices[1:])
        if own and own not in choices:
            raise ConfigError(f"--knob {self.name}: {own} is not one of {', '.join(choices)}")
        return known.model_copy(update={"choices": choices, "value": own or choices[0]})

    def _simplex(self, known: ActuatorSpec, metrics: Collection[str]) -> ActuatorSpec:
        shares: dict[str, float] = {}
        pattern = _COMPONENTS[self.name]
        for part in filter(None, self.given.split(",")):
            name, _, share = part.rpartition(":")
            try:
                shares[name] = float(share)
            except ValueError:
                shares[name] = math.nan
        if not self.given:
            before, _, behind = pattern.partition("*")
            names = sorted(
                name.removeprefix(before).removesuffix(behind) for name in metrics if fnmatchcase(name, pattern)
            )
            shares = {name: 1 / len(names) for name in names}
        total = math.fsum(shares.values())
        if len(shares) < 2 or "" in shares or not math.isfinite(total) or total <= 0 or min(shares.values()) < 0:
            found = f"the run has no two metrics {pattern} to take them from; " if not self.given else ""
            raise ConfigError(
                f"--knob {self.name}: {found}give two shares or more: write e.g. --knob {self.name}=first:.7,second:.3"
            )
        value = {name: share / total for name, share in shares.items()}
        return ActuatorSpec.model_validate(
            known.model_dump() | {"low": 0.0, "high": 1.0, "choices": tuple(value), "value": value}
        )


def asked(texts: Iterable[str]) -> list[Knob]:
    """Those of `--knob NAME[=VALUE]`, the last of each name. Raises ConfigError for a name that is not known."""
    found: dict[str, Knob] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name not in KNOWN:
            near = difflib.get_close_matches(name, KNOWN, n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(KNOWN)}"
            raise ConfigError(f"--knob {name or repr(text)} is not a knob that agents know; {hint}")
        found[name] = Knob(name, value)
        if name not in _COMPONENTS:
            found[name].spec()  # a wrong value is told before anything is read
    return list(found.values())


def announced(knobs: Iterable[Knob], metrics: Collection[str]) -> tuple[ActuatorSpec, ...]:
    """What the run announces: the rate's scale where the rate was logged, and what was asked for."""
    wanted = {knob.name: knob for knob in knobs}
    if RATE in metrics:
        wanted = {SCALE: Knob(SCALE)} | wanted
    return tuple(knob.spec(metrics) for knob in wanted.values())
