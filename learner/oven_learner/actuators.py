"""A registry of actuators: the knobs of a training run that decisions may change, and the actions that they may run.

An actuator consists of a spec, which the learner announces to the agents, and of functions that read and write its
value. After each change, the value is read back to verify it.
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
"""Statuses after which the actuator has the requested value."""
Usage = str | None
"""Whether training used a change: USED, the reason if it did not, or None if that is not known yet."""
USED: Usage = ""


@dataclass(frozen=True, slots=True)
class ChangeResult:
    """The result of changing an actuator or of running its action. Receipts report it."""

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

    def usage(self, *, is_final: bool = False) -> Usage:
        """Return whether training used the change. `is_final` means that there are no more steps."""

    def take_undone_change(self) -> tuple[Value, Value, str] | None:
        """Return (old value, current value, reason) if other code has reverted a setting. Report each case once."""

    def on_restore(self) -> None:
        """Accept the current value, because it was set by restoring a snapshot."""

    def close(self) -> None:
        """Stop watching."""


class Membership(Protocol):
    """The remote members of the reward committee. Operators can add members, remove them, and change their models.
    `offer`, `add` and `remove` return the names of the actuators to announce again. An OvenError means that
    nothing has changed."""

    def probe(self, member: str, judge: JudgeSpec, *, is_new: bool = False) -> Future[str]:
        """Send a test question to a model in the member's process. The result is empty if the model gave a verdict,
        otherwise the reason for the failure. The process of a new member may still be starting."""

    def offer(self, actuators: Actuators, member: str, judge: JudgeSpec) -> tuple[str, ...]:
        """Add the model to those that decisions may choose for the member."""

    def add(self, actuators: Actuators, member: str, judge: JudgeSpec, share: float) -> tuple[str, ...]:
        """Add a member with this share of the total weight."""

    def remove(self, actuators: Actuators, member: str) -> tuple[str, ...]:
        """Remove a member and distribute its weight among the others."""

    def __contains__(self, member: str) -> bool:
        """Whether `member` is currently a remote member."""


ActionResult = Value | tuple[Value, Value] | ChangeResult
"""The return value of an action's function: a value, (before, after), or a ChangeResult."""


@dataclass(frozen=True, slots=True)
class _Actuator:
    spec: ActuatorSpec
    read: Callable[[], Value]
    write: Callable[[Value], object]
    proof: Proof | None = None


class Actuators:
    """A registry of actuators with unique, dotted names. RunStarted announces them. If you add or change an actuator
    later, call `OvenClient.announce`."""

    def __init__(self) -> None:
        self._by_name: dict[str, _Actuator] = {}
        self.proofs: dict[str, Proof] = {}
        """The proofs of the actuators that have one."""
        self.membership: Membership | None = None
        """The remote members of the reward committee, or None without a committee."""

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
        """Register a number within [low, high]. With a `proof`, the receipt of a change waits until training has used
        it. Set `moves_own_metric` if a change directly shifts the metric that would judge it, so that only held-out
        data can judge it. Raises ConfigError for invalid bounds or a value outside them."""
        _check_bounds(name, scale, low, high, read)
        spec = _build_spec(
            name, "scalar", scale=scale, unit=unit, low=low, high=high, risky=risky, moves_own_metric=moves_own_metric
        )
        self._add(_Actuator(spec, read, lambda value: write(float(value)), proof))  # type: ignore[arg-type]

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
        """Register a choice between names. `unit` may explain the order of the names. With `effect="at_end"`, the
        choice matters only at the end of the run. `moves_own_metric` has the same meaning as for a scalar. Raises
        ConfigError for effects that only actions have."""
        fields = {"choices": choices, "unit": unit, "effect": effect, "moves_own_metric": moves_own_metric}
        spec = _build_spec(name, "choice", **fields)
        self._add(_Actuator(spec, read, lambda value: write(str(value))))

    def simplex(
        self,
        name: str,
        read: Callable[[], dict[str, float]],
        write: Callable[[dict[str, float]], object],
        *,
        moves_own_metric: bool = False,
    ) -> None:
        """Register shares that sum to 1, such as a data mixture. `moves_own_metric` means the same as for a scalar."""
        spec = _build_spec(
            name, "simplex", low=0.0, high=1.0, choices=tuple(read()), unit="share", moves_own_metric=moves_own_metric
        )
        self._add(_Actuator(spec, lambda: dict(read()), lambda value: write(dict(value))))  # type: ignore[arg-type]

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
        `moves_own_metric` has the same meaning as for a scalar. Raises ConfigError if `effect` contradicts it.
        """
        spec = _build_spec(name, "action", unit=unit, effect=effect, moves_own_metric=moves_own_metric)
        self._add(_Actuator(spec, lambda: None, run))  # type: ignore[arg-type]

    def update(
        self, name: str, *, choices: Sequence[str] | None = None, low: float | None = None, high: float | None = None
    ) -> None:
        """Change the choices or bounds of an actuator. For a simplex, use the components of its current value. If
        training is running, call `OvenClient.announce` afterwards. Raises UnknownNameError. Changes nothing and raises
        ConfigError if choices or bounds are invalid, exclude the current value, or do not apply to this kind."""
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
        if old.kind != "action" and (problem := invalid_value_reason(spec, current)):
            raise ConfigError(f"{name} is currently {current!r}: {problem}; first set it to an allowed value")
        self._by_name[name] = replace(self._by_name[name], spec=spec)

    def copy(self) -> Actuators:
        """Return a new registry with the same actuators, to which a training run adds its own."""
        duplicate = Actuators()
        duplicate._by_name, duplicate.proofs = dict(self._by_name), dict(self.proofs)
        duplicate.membership = self.membership
        return duplicate

    def spec(self, name: str) -> ActuatorSpec:
        """Return the actuator's spec, without its value. Raises UnknownNameError."""
        return self._find(name).spec

    def proof(self, name: str) -> Proof | None:
        """Return the actuator's proof, or None."""
        return self.proofs.get(name)

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def read(self, name: str) -> Value:
        """Return the actuator's current value. Raises UnknownNameError."""
        return self._find(name).read()

    def specs(self) -> tuple[ActuatorSpec, ...]:
        """Return the specs with the current values."""
        return tuple(with_value(actuator.spec, actuator.read()) for actuator in self._by_name.values())

    def apply(self, name: str, value: Value) -> ChangeResult:
        """Set the value and read it back, or run the action. Never raises. If the trainer raises an error, the change
        is rejected with the error's text."""
        actuator = self._by_name.get(name)
        if actuator is None:
            problem = f"there is no actuator {name!r}; choose from {', '.join(self._by_name)}"
            return ChangeResult("rejected", reason=problem)
        if problem := invalid_value_reason(actuator.spec, value):
            return ChangeResult("rejected", before=_read_safely(actuator), after=_read_safely(actuator), reason=problem)
        if actuator.spec.kind == "action":
            return _run_action(actuator, value)
        try:
            before = actuator.read()
            if same_value(before, value):
                return ChangeResult("noop", before, before, "it already has that value")
            if actuator.proof is not None and (problem := actuator.proof.refusal()):
                return ChangeResult("rejected", before, before, problem)
            actuator.write(value)
        except Exception as error:
            return ChangeResult("rejected", _read_safely(actuator), _read_safely(actuator), reason(error))
        try:
            after = actuator.read()
        except Exception as error:
            return ChangeResult("unknown", before, None, f"it was set but could not be read back: {reason(error)}")
        if same_value(after, value):
            return ChangeResult("applied", before, after)
        if same_value(after, before):
            return ChangeResult("rejected", before, after, "the trainer kept the old value")
        return ChangeResult("applied", before, after, "the trainer changed the requested value")

    def _find(self, name: str) -> _Actuator:
        if name not in self._by_name:
            raise UnknownNameError("actuator", name, self._by_name)
        return self._by_name[name]

    def _add(self, actuator: _Actuator) -> None:
        name = actuator.spec.name
        if name in self._by_name:
            raise ConfigError(
                f"the actuator {name!r} is already registered; choose another name, or call `update` to change "
                "its choices or bounds"
            )
        self._by_name[name] = actuator
        if actuator.proof is not None:
            self.proofs[name] = actuator.proof


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


def _build_spec(name: str, kind: str, **fields: Any) -> ActuatorSpec:
    """Build an actuator's spec. Raises ConfigError if the fields contradict each other."""
    try:
        return ActuatorSpec(name=name, kind=kind, **fields)
    except ValidationError as error:
        raise ConfigError(f"{name}: {reason(error).removeprefix('Value error, ')}") from None


def _run_action(actuator: _Actuator, value: Value) -> ChangeResult:
    try:
        returned = actuator.write(value)
    except Exception as error:
        return ChangeResult("rejected", reason=reason(error))
    if isinstance(returned, ChangeResult):
        return returned
    if isinstance(returned, tuple):
        return ChangeResult("applied", before=returned[0], after=returned[1])
    return ChangeResult("applied", after=returned)  # type: ignore[arg-type]


def _read_safely(actuator: _Actuator) -> Value:
    try:
        return actuator.read()
    except Exception:
        return None


def describe_difference(results: Sequence[ChangeResult]) -> str:
    """Describe how the results of a change differ between ranks. Return an empty string if they do not differ."""
    first = results[0]
    for rank, result in enumerate(results[1:], start=1):
        if (result.status in SUCCESSFUL) != (first.status in SUCCESSFUL) or not same_value(result.after, first.after):
            return f"rank 0 has {_describe(first)} and rank {rank} has {_describe(result)}"
    return ""


def _describe(result: ChangeResult) -> str:
    return f"{result.after!r} ({result.status}{f': {result.reason}' if result.reason else ''})"


def with_value(spec: ActuatorSpec, value: Value) -> ActuatorSpec:
    """Return the spec with this value."""
    return spec.model_copy(update={"value": value})


def invalid_value_reason(spec: ActuatorSpec, value: Value) -> str:
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


__all__ = ["Actuators", "ChangeResult", "Proof", "Status", "describe_difference", "invalid_value_reason", "same_value"]
