"""Check committee members against providers, keys, rubrics and rules, without sending any request."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from oven_core.errors import ConfigError, reason
from oven_core.files import read_file
from oven_core.plugins import resolve_function_name
from oven_core.protocol.judge_spec import JudgeSpec
from oven_runs.settings.committee_settings import CommitteeSettings, MemberSettings
from oven_runs.settings.judge_providers import CALIBRATOR, catalogue, endpoint_of, key_of

INSTALL: Final = "pip install 'oven-controller[llm]'"
MAX_RUBRIC_BYTES: Final = 32_768
"""Maximum size of a rubric file, which is sent with every question."""


def with_checked_members(committee: CommitteeSettings) -> CommitteeSettings:
    """Return the committee with absolute file paths, because processes may start in another folder later. Raises
    ConfigError for a provider, an address, a rubric or a rule that does not exist; keys are not checked."""
    providers = catalogue(committee.providers)
    members = {}
    for name, member in committee.members.items():
        changes: dict[str, str] = {}
        if member.kind == "llm":
            endpoint_of(name, member, providers)
            if member.rubric:
                read_rubric(name, member.rubric)
                changes["rubric"] = str(Path(member.rubric).absolute())
        elif member.kind == "rule":
            owner = f"committee member {name!r}"
            changes["rule"] = resolve_function_name(owner, f"the rule of the {owner}", "rule", "rewards", member.rule)
        members[name] = member.model_copy(update=changes)
    if committee.frontier.model:
        endpoint_of("frontier", committee.frontier.member, providers, CALIBRATOR)
    path = str(Path(committee.providers).absolute()) if committee.providers else ""
    return committee.model_copy(update={"members": members, "providers": path})


def check_keys(committee: CommitteeSettings, environ: Mapping[str, str] = os.environ) -> None:
    """Raise ConfigError for a judge or calibrator whose key is not set or whose SDK is not installed."""
    providers = catalogue(committee.providers)
    models = [(name, member, "") for name, member in committee.judges.items()]
    if committee.frontier.model:
        models.append(("frontier", committee.frontier.member, CALIBRATOR))
    for name, member, setting in models:
        endpoint = endpoint_of(name, member, providers, setting)
        key_of(name, endpoint, environ, setting)
        if find_spec(endpoint.wire) is None:
            raise ConfigError(f"committee member {name!r} needs the package {endpoint.wire}: {INSTALL}")


def read_rubric(name: str, path: str) -> str:
    """Read a user's rubric. Raises ConfigError, which names the file, if it cannot be read or is empty."""
    label = f"the rubric of the committee member {name!r}:"
    try:
        text = read_file(Path(path), label, MAX_RUBRIC_BYTES).decode().strip()
    except UnicodeDecodeError as error:
        raise ConfigError(f"cannot read {label} {path}: it is not UTF-8 text (byte {error.start})") from error
    if not text:
        raise ConfigError(f"{label} {path} is empty; describe in it what to look for, or omit `rubric`")
    return text


def judge_of(settings: MemberSettings) -> JudgeSpec:
    """Return the part of a member's settings that specifies its model."""
    return JudgeSpec.model_validate(settings.model_dump(include={*JudgeSpec.model_fields}))


def with_judge(settings: MemberSettings, judge: JudgeSpec) -> MemberSettings:
    """Return the member with another model but the same role, domain and rubric. Raises ConfigError."""
    try:
        return MemberSettings.model_validate(settings.model_dump() | judge.model_dump())
    except ValidationError as error:
        raise ConfigError(f"the judge {judge.identity} is invalid: {reason(error)}") from None


def new_member(committee: CommitteeSettings, name: str, **fields: Any) -> MemberSettings:
    """Return the settings of a judge to add, checked as in `with_checked_members`. Raises ConfigError."""
    try:
        member = MemberSettings.model_validate(fields)
    except ValidationError as error:
        raise ConfigError(f"the member {name!r} cannot judge: {reason(error)}") from None
    changed_committee = with_checked_members(committee.model_copy(update={"members": {name: member}}))
    return changed_committee.members[name]


def check_judge(committee: CommitteeSettings, member: str, judge: JudgeSpec) -> None:
    """Check a member's next model without calling it. Raises ConfigError."""
    settings = committee.members.get(member, MemberSettings(provider=judge.provider, model=judge.model))
    endpoint_of(member, with_judge(settings, judge), catalogue(committee.providers))
