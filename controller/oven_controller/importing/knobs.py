"""Actuators that a log does not know of, announced so that agents which move them can answer: `--knob NAME[=VALUE]`.

Bounds and kinds are those that an attached run announces for the same value. Nothing can turn them any more.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from oven_controller.errors import ConfigError
from oven_controller.messages import ActuatorSpec

LOW, HIGH = 0.1, 3.0
"""Bounds of a knob as multiples of the user's value."""
DECAY, MOST_DECAY = 10.0, 0.5
"""The upper bound of weight decay: so many times the user's own, and at least this."""
SCALE, ROLLBACK = "optimizer.lr_scale", "run.rollback"
RATE = "learning_rate"
ASSUMED = (SCALE, ROLLBACK, "data.skip")
"""What an attached run has without a word of its user's (the last with a mixture of datasets), and no log names. All of
them begin at a known value."""


@dataclass(frozen=True, slots=True)
class _Known:
    kind: Literal["scalar", "choice", "simplex", "action"]
    value: float | None = None
    """What it is where none is given; None: it has to be given."""
    unit: str = ""
    components: str = ""
    """A simplex's components are the metrics of this pattern, where none are given."""
    risky: bool = False


_KNOWN = {
    SCALE: _Known("scalar", 1.0, "× the schedule", risky=True),
    "optimizer.weight_decay": _Known("scalar", 0.01, "× rate, of each weight in a step"),
    "grad.clip": _Known("scalar", 1.0, "norm"),
    "grpo.beta": _Known("scalar", None, "× KL to the reference"),
    "grpo.epsilon": _Known("scalar", 0.2, "ratio around 1"),
    "grpo.epsilon_high": _Known("scalar", 0.28, "ratio above 1"),
    "rloo.beta": _Known("scalar", None, "× KL per completion, in the reward"),
    "rloo.epsilon": _Known("scalar", 0.2, "ratio around 1"),
    "dpo.beta": _Known("scalar", 0.1, "× log-ratio to the reference, in the loss"),
    "distillation.beta": _Known("scalar", 0.5, "0: forward KL, 1: reverse KL"),
    "channel.distill": _Known("scalar", None, "× loss term"),
    "channel.sft": _Known("scalar", None, "× loss term"),
    "channel.mtp": _Known("scalar", None, "× loss term"),
    "channel.z_loss": _Known("scalar", None, "× loss term"),
    "reward.weights": _Known("simplex", components="rewards/*/mean"),
    "data.mixture": _Known("simplex", components="reward/*"),
    "teacher.active": _Known("choice"),
    ROLLBACK: _Known("action", unit="tick"),
    "run.undo_rollback": _Known("action"),
    "run.evaluate": _Known("action"),
    "run.checkpoint": _Known("action"),
    "data.skip": _Known("action", unit="batches"),
}


@dataclass(frozen=True, slots=True)
class Knob:
    """One that was asked for. `given` is its value as it was written; empty: none was."""

    name: str
    given: str = ""

    def spec(self, metrics: Collection[str] = ()) -> ActuatorSpec:
        """What is announced of it in a run with these metrics. Raises ConfigError where its value has to be given."""
        known = _KNOWN[self.name]
        if known.kind == "action":
            if self.given:
                raise ConfigError(
                    f"--knob {self.name}={self.given}: it is an action and has no value; leave {self.given} out"
                )
            return ActuatorSpec(name=self.name, kind="action", unit=known.unit)
        if known.kind == "choice":
            return self._choice()
        return self._simplex(known, metrics) if known.kind == "simplex" else self._scalar(known)

    def _scalar(self, known: _Known) -> ActuatorSpec:
        value = known.value
        if self.given:
            try:
                value = float(self.given)
            except ValueError:
                value = math.nan
        if value is None:
            raise ConfigError(f"--knob {self.name} needs the value that the run had: write e.g. --knob {self.name}=0.1")
        if not (math.isfinite(value) and value > 0):
            raise ConfigError(f"--knob {self.name}={self.given}: write a number above 0, e.g. --knob {self.name}=0.1")
        common = {"name": self.name, "kind": "scalar", "unit": known.unit, "value": value, "risky": known.risky}
        if self.name == "optimizer.weight_decay":
            bounds = {"scale": "linear", "low": 0.0, "high": max(DECAY * value, MOST_DECAY)}
        elif self.name == "distillation.beta":
            bounds = {"scale": "linear", "low": LOW * value, "high": min(HIGH * value, 1 - (1 - value) * LOW)}
        else:
            bounds = {"scale": "log", "low": round(LOW * value, 9), "high": round(HIGH * value, 9)}
        return ActuatorSpec.model_validate(common | bounds)

    def _choice(self) -> ActuatorSpec:
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
        return ActuatorSpec(name=self.name, kind="choice", choices=choices, value=own or choices[0])

    def _simplex(self, known: _Known, metrics: Collection[str]) -> ActuatorSpec:
        shares: dict[str, float] = {}
        for part in filter(None, self.given.split(",")):
            name, _, share = part.rpartition(":")
            try:
                shares[name] = float(share)
            except ValueError:
                shares[name] = math.nan
        if not self.given:
            before, _, behind = known.components.partition("*")
            names = sorted(
                name.removeprefix(before).removesuffix(behind)
                for name in metrics
                if fnmatchcase(name, known.components)
            )
            shares = {name: 1 / len(names) for name in names}
        total = math.fsum(shares.values())
        if len(shares) < 2 or "" in shares or not math.isfinite(total) or total <= 0 or min(shares.values()) < 0:
            found = f"the run has no two metrics {known.components} to take them from; " if not self.given else ""
            raise ConfigError(
                f"--knob {self.name}: {found}give two shares or more: write e.g. --knob {self.name}=first:.7,second:.3"
            )
        value = {name: share / total for name, share in shares.items()}
        return ActuatorSpec(
            name=self.name, kind="simplex", low=0.0, high=1.0, choices=tuple(value), unit="share", value=value
        )


def asked(texts: Iterable[str]) -> list[Knob]:
    """Those of `--knob NAME[=VALUE]`, the last of each name. Raises ConfigError for a name that is not known."""
    found: dict[str, Knob] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name not in _KNOWN:
            near = difflib.get_close_matches(name, _KNOWN, n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(_KNOWN)}"
            raise ConfigError(f"--knob {name or repr(text)} is not a knob that agents know; {hint}")
        found[name] = Knob(name, value)
        if not _KNOWN[name].components:
            found[name].spec()  # a wrong value is told before anything is read
    return list(found.values())


def announced(knobs: Iterable[Knob], metrics: Collection[str]) -> tuple[ActuatorSpec, ...]:
    """What the run announces: the rate's scale where the rate was logged, and what was asked for."""
    wanted = {knob.name: knob for knob in knobs}
    if RATE in metrics:
        wanted = {SCALE: Knob(SCALE)} | wanted
    return tuple(knob.spec(metrics) for knob in wanted.values())
