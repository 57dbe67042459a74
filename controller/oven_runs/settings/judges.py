"""A committee member's settings and the model that it asks: from the one to the other."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from oven_core.errors import ConfigError
from oven_core.protocol.judge_spec import JudgeSpec
from oven_runs.settings.committee_settings import CommitteeSettings, MemberSettings
from oven_runs.settings.judge_providers import catalogue, endpoint_of
from oven_runs.settings.member_checks import with_checked_members


def judge_of(settings: MemberSettings) -> JudgeSpec:
    """The model that a member was configured with."""
    return JudgeSpec.model_validate(settings.model_dump(include={*JudgeSpec.model_fields}))


def with_judge(settings: MemberSettings, judge: JudgeSpec) -> MemberSettings:
    """The member with another model; its role, domain and rubric stay. Raises ConfigError for what does not fit
    together."""
    try:
        return MemberSettings.model_validate(settings.model_dump() | judge.model_dump())
    except ValidationError as error:
        raise ConfigError(f"the judge {judge.identity} cannot be asked: {first_problem(error)}") from None


def new_member(committee: CommitteeSettings, name: str, **said: Any) -> MemberSettings:
    """A judge that is to join a committee; its rubric's path is made absolute. Raises ConfigError for what does not fit
    together, and for a provider, an address or a rubric that is not there."""
    try:
        member = MemberSettings.model_validate(said)
    except ValidationError as error:
        raise ConfigError(f"the member {name!r} cannot judge: {first_problem(error)}") from None
    checked = with_checked_members(committee.model_copy(update={"members": {name: member}}))
    return checked.members[name]


def check_judge(committee: CommitteeSettings, member: str, judge: JudgeSpec) -> None:
    """What can be said without its process: raises ConfigError for a provider that the run's catalogue lacks, and for
    one without an address."""
    settings = committee.members.get(member, MemberSettings(provider=judge.provider, model=judge.model))
    endpoint_of(member, with_judge(settings, judge), catalogue(committee.providers))


def first_problem(error: ValidationError) -> str:
    """Its first finding in one line, without the input."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return (f"{where}: " if where else "") + first["msg"].removeprefix("Value error, ")
