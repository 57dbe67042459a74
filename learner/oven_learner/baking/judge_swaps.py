"""Swap judges from a script: find the members, and send the commands that offer and choose a model."""

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
"""Executes an operator command; raises CommandRefusedError."""


def model_of(provider: str, model: str, **options: Any) -> JudgeSpec:
    """Build a JudgeSpec. Raises ConfigError for invalid values."""
    try:
        return JudgeSpec(provider=provider, model=model, **options)
    except ValidationError as error:
        raise ConfigError(f"the judge {provider}/{model} cannot be asked: {first_problem(error)}") from None


def member_in(members: Mapping[str, MemberSettings], role: str, name: str | None) -> str:
    """Return the member with this `name`, or the only one in this role.

    Raises UnknownNameError if there is none, and ConfigError if there are several.
    """
    if name is not None:
        if name not in members:
            raise UnknownNameError("member of the committee", name, members)
        return name
    candidates = [key for key, member in members.items() if member.role == role]
    if not candidates:
        raise UnknownNameError("role", role, {member.role for member in members.values()})
    if len(candidates) > 1:
        raise ConfigError(
            f"{', '.join(candidates)} judge as {role}; choose one, swap_agent({role!r}, name={candidates[0]!r}, …)"
        )
    return candidates[0]


def start_with(committee: Committee, names: Sequence[str], model: JudgeSpec) -> None:
    """Before training: probe the model in each member's process, and use it if all probes succeed. Raises
    CommandRefusedError with the reason."""
    probes = {name: _probe(committee, name, model) for name in names}
    for name, probe in probes.items():
        try:
            refused = probe.result(timeout=2 * (committee.remote.deadline_s if committee.remote else 1.0))
        except Late:
            refused = "the probe timed out"
        if refused:
            raise CommandRefusedError(f"{name} keeps {committee.judges.active(name)}: {refused}")
    for name in names:
        committee.choose_judge(name, committee.judges.offer(name, model))


def _probe(committee: Committee, name: str, model: JudgeSpec) -> Future[str]:
    assert committee.remote is not None  # it has the member
    return committee.remote.probe(name, model)


def swap_all(command: Command, names: Sequence[str], model: JudgeSpec, deadline_s: float) -> dict[str, Receipt]:
    """During training: offer the model to each member, and choose it if all accept. Returns the receipts of the
    choices.

    Raises CommandRefusedError with the reason.
    """
    for name in names:
        command(limit_s=deadline_s, action="offer", actuator=actuator_of(name), judge=model)
    receipts: dict[str, Receipt] = {}
    for name in names:
        receipt = command(action="set", actuator=actuator_of(name), value=model.identity)
        assert receipt is not None  # an executed choice has a receipt
        receipts[name] = receipt
    return receipts
