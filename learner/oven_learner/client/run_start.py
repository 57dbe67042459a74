"""Functions that start or resume a run. They open its log and restore the settings of earlier incarnations."""

from __future__ import annotations

import contextlib
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
from oven_learner.actuators import SUCCESSFUL, Actuators, ChangeResult, describe_difference
from oven_learner.client.commands import DIRECT_COMMANDS
from oven_learner.link.link_interface import Link
from oven_learner.link.resume_state import ResumeState
from oven_learner.ranks import Ranks

log = logging.getLogger("oven.learner")

PACKAGES = ("oven-controller", "torch", "transformers", "accelerate", "trl")
"""Packages whose versions RunStarted announces."""

_training_count_by_run: Counter[str] = Counter()
_training_count_by_link: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


def installed_versions() -> dict[str, str]:
    """Return the versions of those PACKAGES that are installed, without importing them."""
    versions = {}
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions


def next_training_name(run: str, link: Any = None) -> str:
    """Return the name of the next training run in this process: "1", "2", … A script may train several times in the
    same run, for example SFT and then GRPO. After a restart, it gets the same names in the same order. If the caller
    passes a `link`, each link counts as a separate run."""
    if link is not None:
        _training_count_by_link[link] = _training_count_by_link.get(link, 0) + 1
        return str(_training_count_by_link[link])
    _training_count_by_run[run] += 1
    return str(_training_count_by_run[run])


def check_rules(rules: Rules, actuators: Actuators) -> None:
    """Raise UnknownNameError if a rule names an actuator that does not exist."""
    for name in rules.autonomy_of:
        if name not in actuators:
            raise UnknownNameError("actuator (in rules.autonomy_of)", name, actuators)


def open_log(link: Link, ranks: Ranks, training: str) -> tuple[ResumeState, str]:
    """Return the state of earlier incarnations and rank 0's name for this training run, on every rank. Only rank 0
    connects. If this fails, every rank raises OvenError, so that no rank waits for the others."""
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
    """Restore bounds that were changed during the training, if the current value lies within them. Do not restore
    choices, because the script may not have registered all of them yet."""
    for name, spec in announced.items():
        if name not in actuators or actuators.spec(name).kind != spec.kind or spec.kind != "scalar":
            continue
        try:
            actuators.update(name, low=spec.low, high=spec.high)
        except ConfigError as error:
            log.warning("cannot restore the last announced bounds: %s", error)


def resume_judges(offered: Mapping[str, Mapping[str, JudgeSpec]], actuators: Actuators) -> None:
    """Restore the models that operators offered and that passed their probes, by actuator and then by identity."""
    membership = actuators.membership
    if membership is None:
        return
    for name, models in offered.items():
        if (member := member_of(name)) in membership:
            for model in models.values():
                membership.offer(actuators, member, model)


def resume_values(values: Mapping[str, Value], actuators: Actuators, ranks: Ranks) -> None:
    """Restore settings in the order of registration. Raises ConfigError if the ranks differ."""
    for name in [*actuators]:  # a copy, because a write function may register further actuators
        if name in values and actuators.spec(name).kind != "action":
            value = values[name]
            result = actuators.apply(name, value)
            level = logging.INFO if result.status in SUCCESSFUL else logging.WARNING
            details = f": {result.reason}" if result.reason else ""
            log.log(level, "restored %s = %s (%s%s)", name, result.after, result.status, details)
            if rank_difference := describe_difference(ranks.all_gather(result)):
                raise ConfigError(f"restoring {name} = {value} gave different outcomes: {rank_difference}")


def receipts_of_unanswered(past: ResumeState) -> Iterator[tuple[ChangeResult, str, str, str]]:
    """Yield (result, actuator, decision id, command id) for each decision or command that was never answered. Do not
    execute old commands, because a run that was stopped and is then resumed must not stop again."""
    for decision in past.unanswered_decisions:
        unknown = ChangeResult("unknown", reason="the learner restarted before it sent the receipt")
        yield unknown, decision.actuator, decision.id, ""
    for command_id, command in past.commands.items():
        if command is not None:
            cause = f"the learner restarted before it executed this; send {command.action} again if you still need it"
            actuator = DIRECT_COMMANDS.get(command.action, command.actuator)
            yield ChangeResult("unknown", reason=cause), actuator, "", command_id
