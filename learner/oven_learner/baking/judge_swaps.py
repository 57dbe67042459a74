"""Swaps of judges from a script: which members are meant, and the commands that offer and choose a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from typing import Any

from pydantic import ValidationError

from oven_core.errors import ConfigError, UnknownNameError
from oven_core.protocol.judge_spec import JudgeSpec, actuator_of
from oven_core.protocol.messages import Receipt
from oven_learner.baking.operator_commands import CommandRefusedError
from oven_learner.rewards import Committee
from oven_runs.settings.committee_members import first_problem
from oven_runs.settings.committee_settings import MemberSettings

Command = Callable[..., Receipt | None]
"""Has an operator's command carried out; raises CommandRefusedError."""


def model_of(provider: str, model: str, **options: Any) -> JudgeSpec:
    """Raises ConfigError for what cannot be asked."""
    try:
        return JudgeSpec(provider=provider, model=model, **options)
    except ValidationError as error:
        raise ConfigError(f"the judge {provider}/{model} cannot be asked: {first_problem(error)}") from None


def member_in(members: Mapping[str, MemberSettings], role: str, name: str | None) -> str:
    """The member by this `name`, else the one in this role. Raises UnknownNameError where there is none, and
    ConfigError where several judge in it."""
    if name is not None:
        if name not in members:
            raise UnknownNameError("member of the committee", name, members)
        return name
    found = [key for key, member in members.items() if member.role == role]
    if not found:
        raise UnknownNameError("role", role, {member.role for member in members.values()})
    if len(found) > 1:
        raise ConfigError(f"{', '.join(found)} judge as {role}: say which, swap_agent({role!r}, name={found[0]!r}, …)")
    return found[0]


def begun_with(committee: Committee, names: Sequence[str], model: JudgeSpec) -> None:
    """Before training: probe the model in each member's process, and begin with it. All or none. Raises
    CommandRefusedError with the reason."""
    probes = {name: _probe(committee, name, model) for name in names}
    for name, probe in probes.items():
        try:
            refused = probe.result(timeout=2 * (committee.remote.deadline_s if committee.remote else 1.0))
        except Late:
            refused = "the probe did not end"
        if refused:
            raise CommandRefusedError(f"{name} keeps {committee.judges.active(name)}: {refused}")
    for name in names:
        committee.choose_judge(name, committee.judges.offer(name, model))


def _probe(committee: Committee, name: str, model: JudgeSpec) -> Future[str]:
    assert committee.remote is not None  # it has the member
    return committee.remote.probe(name, model)


def swapped(command: Command, names: Sequence[str], model: JudgeSpec, deadline_s: float) -> dict[str, Receipt]:
    """While training: offer the model to each member, and only where all took it, choose it. The receipts of the
    choices. Raises CommandRefusedError with the reason."""
    for name in names:
        command(limit_s=deadline_s, action="offer", actuator=actuator_of(name), judge=model)
    receipts: dict[str, Receipt] = {}
    for name in names:
        receipt = command(action="set", actuator=actuator_of(name), value=model.identity)
        assert receipt is not None  # a choice that is carried out has one
        receipts[name] = receipt
    return receipts
