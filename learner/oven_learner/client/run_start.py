"""The start of a run: its log is opened, what earlier incarnations had set is set again, what they owed is answered."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any
from weakref import WeakKeyDictionary

from oven_core.errors import BusError, ConfigError, OvenError, UnknownNameError, reason
from oven_core.protocol.judge_spec import JudgeSpec, member_of
from oven_core.protocol.messages import ActuatorSpec, Value
from oven_core.protocol.rules import Rules
from oven_learner.actuators import DONE, Actuators, Applied, difference
from oven_learner.client.commands import OBEYED
from oven_learner.link.link_interface import Link
from oven_learner.link.resume_state import ResumeState
from oven_learner.ranks import Ranks

PACKAGES = ("oven-controller", "torch", "transformers", "accelerate", "trl")


def installed() -> dict[str, str]:
    """Package → version, of those that are there; none is imported for it."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


_of_run: Counter[str] = Counter()
_of_link: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


def next_training_name(run: str, link: Any = None) -> str:
    """The name of the run's next training in this process: "1", "2", … A script that is started again counts alike.
    A `link` of the caller's own stands for its own run."""
    if link is not None:
        _of_link[link] = _of_link.get(link, 0) + 1
        return str(_of_link[link])
    _of_run[run] += 1
    return str(_of_run[run])


log = logging.getLogger("oven.learner")


def check_rules(rules: Rules, actuators: Actuators) -> None:
    """Raises UnknownNameError for a rule of an actuator that is not there."""
    for name in rules.autonomy_of:
        if name not in actuators:
            raise UnknownNameError("actuator (in rules.autonomy_of)", name, actuators)


def open_log(link: Link, ranks: Ranks, training: str) -> tuple[ResumeState, str]:
    """What earlier incarnations left, and rank 0's name of this training, on every rank. Rank 0 connects; its failure
    is every rank's, so that none waits for the others. Raises OvenError."""
    past: ResumeState | OvenError
    try:
        past = link.open()
    except OvenError as error:
        past = error
    except Exception as error:
        past = BusError(f"the run's log could not be opened: {reason(error)}")
    past, training = ranks.same((past, training))
    if isinstance(past, OvenError):
        raise past
    return past, training


def resume_bounds(announced: Mapping[str, ActuatorSpec], actuators: Actuators) -> None:
    """Bounds that were given to scalars while the training was under way hold again, where the present value lies in
    them. Choices are the script's: what is not there yet cannot be chosen."""
    for name, spec in announced.items():
        if name not in actuators or actuators.spec(name).kind != spec.kind or spec.kind != "scalar":
            continue
        try:
            actuators.update(name, low=spec.low, high=spec.high)
        except ConfigError as error:
            log.warning("the bounds that the run announced last are not resumed: %s", error)


def resume_judges(offered: Mapping[str, Mapping[str, JudgeSpec]], actuators: Actuators) -> None:
    """Models that operators offered, by actuator, are choices again: they answered when they were probed."""
    seats = actuators.seats
    for name, models in offered.items():
        for model in models.values() if seats is not None and member_of(name) in seats else ():
            assert seats is not None
            seats.offer(actuators, member_of(name), model)


def resume_values(values: Mapping[str, Value], actuators: Actuators, ranks: Ranks) -> None:
    """Set what was set, in the order in which actuators were registered. Raises ConfigError where it comes out
    differently on the ranks."""
    for name in [*actuators]:
        if name in values and actuators.spec(name).kind != "action":
            value = values[name]
            applied = actuators.apply(name, value)
            level = logging.INFO if applied.status in DONE else logging.WARNING
            why = f": {applied.reason}" if applied.reason else ""
            log.log(level, "resumed %s = %s (%s%s)", name, applied.after, applied.status, why)
            if differs := difference(ranks.each(applied)):
                raise ConfigError(f"{name} = {value} of the resumed run is not the same everywhere: {differs}")


def owed_receipts(past: ResumeState) -> Iterator[tuple[Applied, str, str, str]]:
    """What is said of that which earlier incarnations left unanswered: its outcome, the actuator, and the
    decision's id or the command's. No one knows whether the operator still wants a command obeyed: a run that was
    stopped, and is resumed, must not stop again."""
    for decision in past.unanswered:
        unknown = Applied("unknown", reason="the learner restarted before it answered")
        yield unknown, decision.actuator, decision.id, ""
    for command_id, command in past.commands.items():
        if command is not None:
            why = f"the learner restarted before it obeyed; say {command.action} again if it still holds"
            yield Applied("unknown", reason=why), OBEYED.get(command.action, command.actuator), "", command_id
