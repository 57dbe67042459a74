"""A registry of a trainer's knobs: named getters and setters with bounds. Changes are verified by reading them back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from pydantic import ValidationError

from oven_core.errors import ConfigError, UnknownNameError, reason
from oven_core.mesh.actuator_values import TOLERANCE, same_value
from oven_core.protocol.judge_spec import JudgeSpec
from oven_core.protocol.messages import ActuatorSpec, Effect, Value

Status = Literal["applied", "noop", "rejected", "skipped", "expired", "unknown"]

DONE: tuple[Status, ...] = ("applied", "noop")
"""Outcomes after which the new value is active."""


@dataclass(frozen=True, slots=True)
class Applied:
    """The outcome of a change."""

    status: Status
    before: Value = None
    after: Value = None
    reason: str = ""


class Proof(Protocol):
    """Reports whether training has used a new setting, because other code may overwrite it first."""

    @property
    def sure(self) -> bool:
        """Whether the setting will certainly be used, so that a receipt does not have to wait."""

    def refused(self) -> str:
        """Return why no change can be made; empty if one can."""

    def begin(self, before: Any) -> None:
        """Start to watch whether a change from `before` is used."""

    def verdict(self, *, ended: bool = False) -> str | None:
        """Return why the change was not used; empty if it was, None while that is unknown. `ended`: no more steps will
        come."""

    def lost(self) -> tuple[Value, Value, str] | None:
        """Return (old value, present value, why) once, if a setting was undone later."""

    def moved(self) -> None:
        """Note that a restored state has set the value."""

    def close(self) -> None:
        """Stop watching."""


class Seats(Protocol):
    """The remote members of a committee, which operators can add and remove, and whose models they can change.

    The methods that change actuators return the names of those to be announced again. They raise OvenError with nothing
    changed.
    """

    def probe(self, member: str, judge: JudgeSpec, *, joins: bool = False) -> Future[str]:
        """Ask a model a test question in the member's process. The result is empty if it gave a verdict, else why not.
        `joins`: the process may still be starting."""

    def offer(self, actuators: Actuators, member: str, judge: JudgeSpec) -> tuple[str, ...]:
        """Add the model to the member's choices."""

    def add(self, actuators: Actuators, member: str, judge: JudgeSpec, share: float) -> tuple[str, ...]:
        """Add a member with this share of the total weight."""

    def remove(self, actuators: Actuators, member: str) -> tuple[str, ...]:
        """Remove a member; the others get its weight."""

    def __contains__(self, member: str) -> bool:
        """Whether `member` is a remote member now."""


Outcome = Value | tuple[Value, Value]
"""The result of an action: a value, or (before, after)."""


@dataclass(frozen=True, slots=True)
class _Knob:
    spec: ActuatorSpec
    read: Callable[[], Value]
    write: Callable[[Value], object]
    proof: Proof | None = None


class Actuators:
    """A registry of knobs with unique, dotted names.

    RunStarted announces them. If one is added or changed later, call `OvenClient.announce`.
    """

    def __init__(self) -> None:
        self._knobs: dict[str, _Knob] = {}
        self.seats: Seats | None = None
        """The seats of the training's committee; None without a committee."""

    def scalar(
        self,
        name: str,
        read: Callable[[], float],
        write: Callable[[float], object],
        *,
        low: float,
        high: float,
        scale: Literal["linear", "log"] = "linear",
        unit: str = "",
        risky: bool = False,
        moves_own_metric: bool = False,
        proof: Proof | None = None,
    ) -> None:
        """Register a number within [low, high]. Raises ConfigError for invalid bounds or a value outside them.

        With a `proof` a change counts once training has used it. `moves_own_metric`: a change moves the metric that
        would judge it, so that only held-out data can judge it.
        """
        _check_bounds(name, scale, low, high, read)
        spec = _announcement(
            name=name,
            kind="scalar",
            scale=scale,
            unit=unit,
            low=low,
            high=high,
            risky=risky,
            moves_own_metric=moves_own_metric,
        )
        self._add(spec, read, lambda value: write(float(value)), proof)  # type: ignore[arg-type]

    def choice(
        self,
        name: str,
        read: Callable[[], str],
        write: Callable[[str], object],
        choices: tuple[str, ...],
        *,
        unit: str = "",
        effect: Effect = "setting",
        moves_own_metric: bool = False,
    ) -> None:
        """Register a choice between names. `unit` may say what their order means. With `effect="at_end"` it matters
        only when the run ends. `moves_own_metric` is as for a scalar. Raises ConfigError for the effects of actions."""
        spec = _announcement(
            name=name, kind="choice", choices=choices, unit=unit, effect=effect, moves_own_metric=moves_own_metric
        )
        self._add(spec, read, lambda value: write(str(value)))

    def simplex(
        self,
        name: str,
        read: Callable[[], dict[str, float]],
        write: Callable[[dict[str, float]], object],
        *,
        moves_own_metric: bool = False,
    ) -> None:
        """Register shares that sum to 1, such as a data mixture. `moves_own_metric` is as for a scalar."""
        spec = _announcement(
            name=name,
            kind="simplex",
            low=0.0,
            high=1.0,
            choices=tuple(read()),
            unit="share",
            moves_own_metric=moves_own_metric,
        )
        self._add(spec, lambda: dict(read()), lambda value: write(dict(value)))  # type: ignore[arg-type]

    def action(
        self,
        name: str,
        run: Callable[[float | None], Outcome],
        *,
        unit: str = "",
        effect: Effect = "setting",
        moves_own_metric: bool = False,
    ) -> None:
        """Register an action. The receipt has the value that `run` returns. `run` raises an error to refuse.

        `effect` describes the action. An action that measures or copies is not an intervention and has no outcome;
        neither has one that ends or holds the run. An action that moves the weights confounds all pending outcomes, and
        comes last in a plan. `moves_own_metric` is as for a scalar. Raises ConfigError if the two contradict each
        other.
        """
        spec = _announcement(name=name, kind="action", unit=unit, effect=effect, moves_own_metric=moves_own_metric)
        self._add(spec, lambda: None, run)  # type: ignore[arg-type]

    def update(
        self,
        name: str,
        *,
        choices: Sequence[str] | None = None,
        low: float | None = None,
        high: float | None = None,
    ) -> None:
        """Change the choices or bounds of an actuator. A simplex gets the components that it reads now.

        In a running training call `OvenClient.announce` afterwards. Raises UnknownNameError. Raises ConfigError with
        nothing changed if the present value would not fit, a choice is not a name, or the kind has no such limits.
        """
        old, present = self.spec(name), self.read(name)
        if choices is not None and old.kind != "choice":
            raise ConfigError(f"{name} is of the kind {old.kind}, which has no choices to change")
        if (low is not None or high is not None) and old.kind != "scalar":
            raise ConfigError(f"{name} is of the kind {old.kind}, which has no bounds to change")
        new: dict[str, Any] = {}
        if old.kind == "scalar":
            new = {"low": old.low if low is None else low, "high": old.high if high is None else high}
            _check_bounds(name, old.scale, new["low"], new["high"], lambda: float(present))  # type: ignore[arg-type]
        elif choices is not None:
            if isinstance(choices, str) or not all(isinstance(choice, str) and choice for choice in choices):
                raise ConfigError(f"{name}: the choices {choices!r} are not names; give a list of strings")
            new = {"choices": tuple(dict.fromkeys(choices))}
        elif old.kind == "simplex":
            new = {"choices": tuple(present)}  # type: ignore[arg-type]
        spec = old.model_copy(update=new)
        if old.kind != "action" and (problem := misfit(spec, present)):
            raise ConfigError(f"{name} reads {present!r} now: {problem}; set it to a value that fits first")
        self._knobs[name] = replace(self._knobs[name], spec=spec)

    def copy(self) -> Actuators:
        """Return another registry with the same knobs, to which a training adds its own."""
        copied = Actuators()
        copied._knobs, copied.seats = dict(self._knobs), self.seats
        return copied

    def spec(self, name: str) -> ActuatorSpec:
        """Return the announcement of the actuator, without its value. Raises UnknownNameError."""
        if name not in self._knobs:
            raise UnknownNameError("actuator", name, self._knobs)
        return self._knobs[name].spec

    def proof(self, name: str) -> Proof | None:
        """Return the proof that changes of the actuator are used, or None."""
        return self._knobs[name].proof if name in self._knobs else None

    def proofs(self) -> dict[str, Proof]:
        """Return the proofs of the actuators that have one."""
        return {name: knob.proof for name, knob in self._knobs.items() if knob.proof is not None}

    def __contains__(self, name: str) -> bool:
        return name in self._knobs

    def __iter__(self) -> Iterator[str]:
        return iter(self._knobs)

    def read(self, name: str) -> Value:
        """Return the actuator's present value. Raises UnknownNameError."""
        if name not in self._knobs:
            raise UnknownNameError("actuator", name, self._knobs)
        return self._knobs[name].read()

    def specs(self) -> tuple[ActuatorSpec, ...]:
        """Return the announcements with the present values."""
        return tuple(with_value(knob.spec, knob.read()) for knob in self._knobs.values())

    def apply(self, name: str, value: Value) -> Applied:
        """Set the value and read it back. Never raises: an error in the trainer becomes a rejection with its text."""
        knob = self._knobs.get(name)
        if knob is None:
            return Applied("rejected", reason=f"there is no actuator {name!r}; there are {', '.join(self._knobs)}")
        if problem := misfit(knob.spec, value):
            return Applied("rejected", before=_safely(knob.read), after=_safely(knob.read), reason=problem)
        if knob.spec.kind == "action":
            return _act(knob, value)
        try:
            before = knob.read()
            if same_value(before, value):
                return Applied("noop", before, before, "it has that value")
            if knob.proof is not None and (problem := knob.proof.refused()):
                return Applied("rejected", before, before, problem)
            knob.write(value)
        except Exception as error:
            return Applied("rejected", _safely(knob.read), _safely(knob.read), reason(error))
        try:
            after = knob.read()
        except Exception as error:
            return Applied("unknown", before, None, f"set, but not read back: {reason(error)}")
        if same_value(after, value):
            return Applied("applied", before, after)
        if same_value(after, before):
            return Applied("rejected", before, after, "the trainer kept its value")
        return Applied("applied", before, after, "the trainer took another value than asked for")

    def _add(
        self,
        spec: ActuatorSpec,
        read: Callable[[], Value],
        write: Callable[[Value], object],
        proof: Proof | None = None,
    ) -> None:
        if spec.name in self._knobs:
            raise ConfigError(
                f"the actuator {spec.name!r} is registered already; names are unique, and `update` gives one other "
                "choices or bounds"
            )
        self._knobs[spec.name] = _Knob(spec, read, write, proof)


def _check_bounds(name: str, scale: str, low: float, high: float, read: Callable[[], float]) -> None:
    """Raises ConfigError if the bounds are not a range, or the present value lies outside."""
    if not (math.isfinite(low) and math.isfinite(high) and low < high) or (scale == "log" and low <= 0):
        raise ConfigError(
            f"{name}: bounds [{low:g}, {high:g}] are no {scale} range; give low < high"
            + (", low > 0" if scale == "log" else "")
        )
    present = read()
    if not low <= present <= high:
        raise ConfigError(f"{name} is {present:g} now, outside its bounds [{low:g}, {high:g}]; widen them")


def _announcement(**fields: Any) -> ActuatorSpec:
    """Raises ConfigError if the fields contradict each other."""
    try:
        return ActuatorSpec(**fields)
    except ValidationError as error:
        raise ConfigError(f"{fields['name']}: {reason(error).removeprefix('Value error, ')}") from None


def _act(knob: _Knob, value: Value) -> Applied:
    try:
        outcome = knob.write(value)
    except Exception as error:
        return Applied("rejected", reason=reason(error))
    if isinstance(outcome, tuple):
        return Applied("applied", before=outcome[0], after=outcome[1])
    return Applied("applied", after=outcome)  # type: ignore[arg-type]


def _safely(read: Callable[[], Value]) -> Value:
    try:
        return read()
    except Exception:
        return None


def difference(each: Sequence[Applied]) -> str:
    """Describe the difference between the outcomes of a change on the ranks; empty if there is none."""
    first = each[0]
    for rank, outcome in enumerate(each[1:], start=1):
        if (outcome.status in DONE) != (first.status in DONE) or not same_value(outcome.after, first.after):
            return " and ".join(
                f"rank {index} has {applied.after!r} ({applied.status}{': ' if applied.reason else ''}{applied.reason})"
                for index, applied in ((0, first), (rank, outcome))
            )
    return ""


def with_value(spec: ActuatorSpec, value: Value) -> ActuatorSpec:
    """Return the announcement with this value."""
    return spec.model_copy(update={"value": value})


def misfit(spec: ActuatorSpec, value: Value) -> str:
    """Return why `value` cannot be set on the actuator; empty if it can. The mesh has checked it before."""
    match spec.kind:
        case "scalar":
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                return f"{value!r} is no finite number"
            low, high = spec.low, spec.high
            if (low is not None and value < low * (1 - TOLERANCE)) or (
                high is not None and value > high * (1 + TOLERANCE)
            ):
                return f"{value:g} is outside the bounds [{low:g}, {high:g}]"
        case "choice":
            if value not in spec.choices:
                return f"{value!r} is none of {', '.join(spec.choices)}"
        case "simplex":
            if not isinstance(value, Mapping) or set(value) != set(spec.choices):
                return f"{value!r} does not name exactly {', '.join(spec.choices)}"
            if any(not 0 <= share <= 1 for share in value.values()) or abs(sum(value.values()) - 1) > 1e-3:
                return f"shares {value} are not within [0, 1] with sum 1"
        case "action":
            if value is not None and not isinstance(value, int | float):
                return f"{value!r} is neither a number nor nothing"
    return ""


__all__ = ["Actuators", "Applied", "Proof", "Status", "difference", "misfit", "same_value"]
