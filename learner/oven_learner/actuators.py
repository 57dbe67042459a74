"""A registry of a trainer's knobs, which are named getters and setters with bounds.

After each change, the value is read back to verify it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from pydantic import ValidationError

from oven_core.errors import ConfigError, UnknownNameError, reason
from oven_core.mesh.actuator_values import READ_BACK_TOLERANCE, same_value
from oven_core.protocol.judge_spec import JudgeSpec
from oven_core.protocol.messages import ActuatorSpec, Effect, Value

Status = Literal["applied", "noop", "rejected", "skipped", "expired", "unknown"]

SUCCESSFUL: tuple[Status, ...] = ("applied", "noop")
"""Outcomes after which the requested value is active."""
Verdict = str | None
"""Whether training used a change: USED, the reason if it did not, or None if that is not known yet."""
USED: Verdict = ""


@dataclass(frozen=True, slots=True)
class Applied:
    """The outcome of a change."""

    status: Status
    before: Value = None
    after: Value = None
    reason: str = ""


class Proof(Protocol):
    """A check that training has used a new setting, because other code may overwrite it first."""

    @property
    def is_certain(self) -> bool:
        """Whether the setting will certainly be used, so that the receipt can be sent immediately."""

    def refusal(self) -> str:
        """Return the reason why the setting cannot be changed, or an empty string."""

    def begin(self, before: Any) -> None:
        """Start watching whether training uses a change from the value `before`."""

    def verdict(self, *, is_final: bool = False) -> Verdict:
        """Return whether training used the change. `is_final` means that there are no more steps."""

    def take_undone_change(self) -> tuple[Value, Value, str] | None:
        """Return (old value, current value, reason) if other code has reverted a setting. Reports each case once."""

    def on_restore(self) -> None:
        """Expect the current value from now on, because restoring a saved state has set it."""

    def close(self) -> None:
        """Stop watching."""


class Seats(Protocol):
    """The remote members of a committee. Operators can add members, remove them, and change their models. Methods that
    change actuators return the names of the actuators to announce again. If they raise OvenError, nothing has
    changed."""

    def probe(self, member: str, judge: JudgeSpec, *, joins: bool = False) -> Future[str]:
        """Send a test question to a model in the member's process. The result is empty if the model gave a verdict,
        otherwise the reason for the failure. `joins` means that the process may still be starting."""

    def offer(self, actuators: Actuators, member: str, judge: JudgeSpec) -> tuple[str, ...]:
        """Add the model to the member's choices."""

    def add(self, actuators: Actuators, member: str, judge: JudgeSpec, share: float) -> tuple[str, ...]:
        """Add a member with this share of the total weight."""

    def remove(self, actuators: Actuators, member: str) -> tuple[str, ...]:
        """Remove a member and distribute its weight among the others."""

    def __contains__(self, member: str) -> bool:
        """Whether `member` is currently a remote member."""


ActionResult = Value | tuple[Value, Value] | Applied
"""The result of an action: a value, (before, after), or the whole outcome, for one with a reason."""


@dataclass(frozen=True, slots=True)
class _Knob:
    spec: ActuatorSpec
    read: Callable[[], Value]
    write: Callable[[Value], object]
    proof: Proof | None = None


class Actuators:
    """A registry of knobs with unique, dotted names. RunStarted announces them. If you add or change a knob later, call
    `OvenClient.announce`."""

    def __init__(self) -> None:
        self._knobs: dict[str, _Knob] = {}
        self.seats: Seats | None = None
        """The remote members of the committee, or None without a committee."""

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
        """Register a number within [low, high]. Raises ConfigError for invalid bounds or a value outside them. With a
        `proof`, a change counts only once training has used it. Set `moves_own_metric` if a change directly shifts the
        metric that would judge it. Then only held-out data can judge the change."""
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
        """Register a choice between names. `unit` may explain the order of the names. With `effect="at_end"` the choice
        matters only at the end of the run. `moves_own_metric` has the same meaning as for a scalar. Raises ConfigError
        for effects that only actions have."""
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
        """Register shares that sum to 1, such as a data mixture. `moves_own_metric` has the same meaning as for a
        scalar."""
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
        run: Callable[[float | None], ActionResult],
        *,
        unit: str = "",
        effect: Effect = "setting",
        moves_own_metric: bool = False,
    ) -> None:
        """Register an action. The receipt contains the value that `run` returns. To refuse, `run` raises an error.

        `effect` describes the action. Actions that measure, copy, or end or hold the run are not interventions and have
        no outcome. An action that moves the weights confounds all pending outcomes and comes last in a plan.
        `moves_own_metric` has the same meaning as for a scalar. Raises ConfigError if it contradicts `effect`.
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
        """Change the choices or bounds of an actuator. For a simplex, update its components to its current value. If
        training is running, call `OvenClient.announce` afterwards. Raises UnknownNameError. Raises ConfigError, and
        changes nothing, for an invalid choice, or limits that exclude the current value or do not apply to the kind."""
        old, current = self.spec(name), self.read(name)
        if choices is not None and old.kind != "choice":
            raise ConfigError(f"{name} is a {old.kind}, which has no choices to change")
        if (low is not None or high is not None) and old.kind != "scalar":
            raise ConfigError(f"{name} is a {old.kind}, which has no bounds to change")
        changes: dict[str, Any] = {}
        if old.kind == "scalar":
            changes = {"low": old.low if low is None else low, "high": old.high if high is None else high}
            _check_bounds(name, old.scale, changes["low"], changes["high"], lambda: float(current))  # type: ignore[arg-type]
        elif choices is not None:
            if isinstance(choices, str) or not all(isinstance(choice, str) and choice for choice in choices):
                raise ConfigError(f"{name}: the choices {choices!r} are not names; give a list of strings")
            changes = {"choices": tuple(dict.fromkeys(choices))}
        elif old.kind == "simplex":
            changes = {"choices": tuple(current)}  # type: ignore[arg-type]
        spec = old.model_copy(update=changes)
        if old.kind != "action" and (problem := misfit_reason(spec, current)):
            raise ConfigError(f"{name} is currently {current!r}: {problem}; first set it to an allowed value")
        self._knobs[name] = replace(self._knobs[name], spec=spec)

    def copy(self) -> Actuators:
        """Return a new registry with the same knobs. A training run adds its own knobs to the copy."""
        duplicate = Actuators()
        duplicate._knobs, duplicate.seats = dict(self._knobs), self.seats
        return duplicate

    def spec(self, name: str) -> ActuatorSpec:
        """Return the announcement of the actuator, without its value. Raises UnknownNameError."""
        if name not in self._knobs:
            raise UnknownNameError("actuator", name, self._knobs)
        return self._knobs[name].spec

    def proof(self, name: str) -> Proof | None:
        """Return the actuator's proof, or None."""
        return self._knobs[name].proof if name in self._knobs else None

    def proofs(self) -> dict[str, Proof]:
        """Return the proofs of the actuators that have one."""
        return {name: knob.proof for name, knob in self._knobs.items() if knob.proof is not None}

    def __contains__(self, name: str) -> bool:
        return name in self._knobs

    def __iter__(self) -> Iterator[str]:
        return iter(self._knobs)

    def read(self, name: str) -> Value:
        """Return the actuator's current value. Raises UnknownNameError."""
        if name not in self._knobs:
            raise UnknownNameError("actuator", name, self._knobs)
        return self._knobs[name].read()

    def specs(self) -> tuple[ActuatorSpec, ...]:
        """Return the announcements with the current values."""
        return tuple(with_value(knob.spec, knob.read()) for knob in self._knobs.values())

    def apply(self, name: str, value: Value) -> Applied:
        """Set the value and read it back. Never raises: an error in the trainer becomes a rejection with its text."""
        knob = self._knobs.get(name)
        if knob is None:
            return Applied("rejected", reason=f"there is no actuator {name!r}; choose from {', '.join(self._knobs)}")
        if problem := misfit_reason(knob.spec, value):
            return Applied("rejected", before=_read_safely(knob), after=_read_safely(knob), reason=problem)
        if knob.spec.kind == "action":
            return _run_action(knob, value)
        try:
            before = knob.read()
            if same_value(before, value):
                return Applied("noop", before, before, "it already has that value")
            if knob.proof is not None and (problem := knob.proof.refusal()):
                return Applied("rejected", before, before, problem)
            knob.write(value)
        except Exception as error:
            return Applied("rejected", _read_safely(knob), _read_safely(knob), reason(error))
        try:
            after = knob.read()
        except Exception as error:
            return Applied("unknown", before, None, f"it was set but could not be read back: {reason(error)}")
        if same_value(after, value):
            return Applied("applied", before, after)
        if same_value(after, before):
            return Applied("rejected", before, after, "the trainer kept the old value")
        return Applied("applied", before, after, "the trainer changed the requested value")

    def _add(
        self,
        spec: ActuatorSpec,
        read: Callable[[], Value],
        write: Callable[[Value], object],
        proof: Proof | None = None,
    ) -> None:
        if spec.name in self._knobs:
            raise ConfigError(
                f"the actuator {spec.name!r} is already registered; choose another name, or call `update` to change "
                "its choices or bounds"
            )
        self._knobs[spec.name] = _Knob(spec, read, write, proof)


def _check_bounds(name: str, scale: str, low: float, high: float, read: Callable[[], float]) -> None:
    """Raise ConfigError if the bounds are not a range, or if the current value lies outside."""
    if not (math.isfinite(low) and math.isfinite(high) and low < high) or (scale == "log" and low <= 0):
        raise ConfigError(
            f"{name}: the bounds [{low:g}, {high:g}] are not a valid {scale} range; expected finite numbers with low < "
            + ("high and low > 0" if scale == "log" else "high")
        )
    current = read()
    if not low <= current <= high:
        raise ConfigError(f"{name} is currently {current:g}, outside its bounds [{low:g}, {high:g}]; widen them")


def _announcement(**fields: Any) -> ActuatorSpec:
    """Build an actuator's announcement. Raises ConfigError if the fields contradict each other."""
    try:
        return ActuatorSpec(**fields)
    except ValidationError as error:
        raise ConfigError(f"{fields['name']}: {reason(error).removeprefix('Value error, ')}") from None


def _run_action(knob: _Knob, value: Value) -> Applied:
    try:
        outcome = knob.write(value)
    except Exception as error:
        return Applied("rejected", reason=reason(error))
    if isinstance(outcome, Applied):
        return outcome
    if isinstance(outcome, tuple):
        return Applied("applied", before=outcome[0], after=outcome[1])
    return Applied("applied", after=outcome)  # type: ignore[arg-type]


def _read_safely(knob: _Knob) -> Value:
    try:
        return knob.read()
    except Exception:
        return None


def difference(outcomes: Sequence[Applied]) -> str:
    """Describe how the outcomes of a change differ between ranks. Empty if they do not differ."""
    first = outcomes[0]
    for rank, outcome in enumerate(outcomes[1:], start=1):
        if (outcome.status in SUCCESSFUL) != (first.status in SUCCESSFUL) or not same_value(outcome.after, first.after):
            return " and ".join(
                f"rank {index} has {applied.after!r} ({applied.status}{': ' if applied.reason else ''}{applied.reason})"
                for index, applied in ((0, first), (rank, outcome))
            )
    return ""


def with_value(spec: ActuatorSpec, value: Value) -> ActuatorSpec:
    """Return the announcement with this value."""
    return spec.model_copy(update={"value": value})


def misfit_reason(spec: ActuatorSpec, value: Value) -> str:
    """Return the reason why the actuator cannot have this value, or an empty string. The mesh checks this as well."""
    match spec.kind:
        case "scalar":
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                return f"{value!r} is not a finite number"
            low, high = spec.low, spec.high
            if (low is not None and value < low * (1 - READ_BACK_TOLERANCE)) or (
                high is not None and value > high * (1 + READ_BACK_TOLERANCE)
            ):
                return f"{value:g} is outside the bounds [{low:g}, {high:g}]"
        case "choice":
            if value not in spec.choices:
                return f"{value!r} is not one of {', '.join(spec.choices)}"
        case "simplex":
            if not isinstance(value, Mapping) or set(value) != set(spec.choices):
                return f"{value!r} must have exactly the components {', '.join(spec.choices)}"
            if any(not 0 <= share <= 1 for share in value.values()) or abs(sum(value.values()) - 1) > 1e-3:
                return f"the shares {value} must be within [0, 1] and sum to 1"
        case "action":
            if value is not None and not isinstance(value, int | float):
                return f"{value!r} is not a number; give a number or no value"
    return ""


__all__ = ["Actuators", "Applied", "Proof", "Status", "difference", "misfit_reason", "same_value"]
