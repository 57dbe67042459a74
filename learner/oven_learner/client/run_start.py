"""Starts or resumes a run. It opens the log, and restores the settings of earlier incarnations.

It also answers their open decisions and commands.
"""

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
from oven_learner.actuators import SUCCESSFUL, Actuators, Applied, difference
from oven_learner.client.commands import DIRECT_COMMANDS
from oven_learner.link.link_interface import Link
from oven_learner.link.resume_state import ResumeState
from oven_learner.ranks import Ranks

log = logging.getLogger("oven.learner")

PACKAGES = ("oven-controller", "torch", "transformers", "accelerate", "trl")
"""Packages whose versions are announced."""

_trainings_by_run: Counter[str] = Counter()
_trainings_by_link: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


def installed_versions() -> dict[str, str]:
    """Return the versions of those PACKAGES that are installed, without importing them."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def next_training_name(run: str, link: Any = None) -> str:
    """Return the name of the next training run in this process: "1", "2", … A script may train several times in the
    same run, for example SFT and then GRPO. A restarted script counts in the same way. A `link` from the caller counts
    as a separate run."""
    if link is not None:
        _trainings_by_link[link] = _trainings_by_link.get(link, 0) + 1
        return str(_trainings_by_link[link])
    _trainings_by_run[run] += 1
    return str(_trainings_by_run[run])


def check_rules(rules: Rules, actuators: Actuators) -> None:
    """Raise UnknownNameError if a rule names an actuator that does not exist."""
    for name in rules.autonomy_of:
        if name not in actuators:
            raise UnknownNameError("actuator (in rules.autonomy_of)", name, actuators)


def open_log(link: Link, ranks: Ranks, training: str) -> tuple[ResumeState, str]:
    """Return the state of earlier incarnations and rank 0's name for this training run, on every rank. Only rank 0
    connects. If it fails, every rank raises OvenError, so that no rank waits for the others."""
    outcome: ResumeState | OvenError
    try:
        outcome = link.open()
    except OvenError as error:
        outcome = error
    except Exception as error:
        outcome = BusError(f"cannot open the run's log: {reason(error)}")
    outcome, training = ranks.broadcast((outcome, training))
    if isinstance(outcome, OvenError):
        raise outcome
    return outcome, training


def resume_bounds(announced: Mapping[str, ActuatorSpec], actuators: Actuators) -> None:
    """Restore bounds that were changed during the training, if the current value lies within them. Choices are not
    restored, because the script may not have registered all of them yet."""
    for name, spec in announced.items():
        if name not in actuators or actuators.spec(name).kind != spec.kind or spec.kind != "scalar":
            continue
        try:
            actuators.update(name, low=spec.low, high=spec.high)
        except ConfigError as error:
            log.warning("cannot restore the last announced bounds: %s", error)


def resume_judges(offered: Mapping[str, Mapping[str, JudgeSpec]], actuators: Actuators) -> None:
    """Restore the models that operators offered as choices, by actuator. They have passed their probe before."""
    seats = actuators.seats
    if seats is None:
        return
    for name, models in offered.items():
        if (member := member_of(name)) in seats:
            for model in models.values():
                seats.offer(actuators, member, model)


def resume_values(values: Mapping[str, Value], actuators: Actuators, ranks: Ranks) -> None:
    """Restore settings in the order of registration. Raises ConfigError if the ranks differ."""
    for name in [*actuators]:
        if name in values and actuators.spec(name).kind != "action":
            value = values[name]
            applied = actuators.apply(name, value)
            level = logging.INFO if applied.status in SUCCESSFUL else logging.WARNING
            details = f": {applied.reason}" if applied.reason else ""
            log.log(level, "restored %s = %s (%s%s)", name, applied.after, applied.status, details)
            if rank_difference := difference(ranks.all_gather(applied)):
                raise ConfigError(f"restoring {name} = {value} gave different outcomes: {rank_difference}")


def receipts_of_unanswered(past: ResumeState) -> Iterator[tuple[Applied, str, str, str]]:
    """Yield (outcome, actuator, decision id, command id) for each decision or command that was never answered. Old
    commands are not executed, because a run that was stopped and is resumed must not stop again."""
    for decision in past.unanswered_decisions:
        unknown = Applied("unknown", reason="the learner restarted before it sent the receipt")
        yield unknown, decision.actuator, decision.id, ""
    for command_id, command in past.commands.items():
        if command is not None:
            cause = f"the learner restarted before it executed this; send {command.action} again if you still need it"
            actuator = DIRECT_COMMANDS.get(command.action, command.actuator)
            yield Applied("unknown", reason=cause), actuator, "", command_id
