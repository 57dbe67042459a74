"""The committee's members checked against what is there: providers, keys, rubrics, rules. Asks no endpoint."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from oven_core.errors import ConfigError
from oven_core.files import read_file
from oven_runs.settings.committee_settings import CommitteeSettings
from oven_runs.settings.judge_providers import CALIBRATOR, catalogue, endpoint_of, key_of
from oven_runs.settings.named_functions import checked_function

INSTALL = "pip install 'oven-controller[llm]'"
RUBRIC_BYTES = 32_768
"""Of a rubric's file: it is sent with each question."""


def with_checked_members(committee: CommitteeSettings) -> CommitteeSettings:
    """The same with the paths of its files made absolute, since processes may start elsewhere later. Raises ConfigError
    for a provider, an address, a rubric or a rule that is not there; keys are not looked at."""
    known = catalogue(committee.providers)
    members = {}
    for name, member in committee.members.items():
        changed: dict[str, str] = {}
        if member.kind == "llm":
            endpoint_of(name, member, known)
            if member.rubric:
                read_rubric(name, member.rubric)
                changed["rubric"] = str(Path(member.rubric).absolute())
        elif member.kind == "rule":
            owner = f"committee member {name!r}"
            changed["rule"] = checked_function(owner, f"the rule of the {owner}", "rule", "rewards", member.rule)
        members[name] = member.model_copy(update=changed)
    if committee.frontier.model:
        endpoint_of("frontier", committee.frontier.member, known, CALIBRATOR)
    providers = str(Path(committee.providers).absolute()) if committee.providers else ""
    return committee.model_copy(update={"members": members, "providers": providers})


def check_keys(committee: CommitteeSettings, environ: Mapping[str, str] = os.environ) -> None:
    """Raises ConfigError for a judge, or a calibrator, whose key is not in the environment, or whose SDK is not
    installed."""
    known = catalogue(committee.providers)
    asking = [(name, member, "") for name, member in committee.judges.items()]
    if committee.frontier.model:
        asking.append(("frontier", committee.frontier.member, CALIBRATOR))
    for name, member, at in asking:
        asked = endpoint_of(name, member, known, at)
        key_of(name, asked, environ, at)
        if find_spec(asked.wire) is None:  # the SDKs are called as the wire formats are
            raise ConfigError(f"committee member {name!r} needs the package {asked.wire}: {INSTALL}")


def read_rubric(name: str, path: str) -> str:
    """A rubric of the user's. Raises ConfigError, which names the file, for one that cannot be read or is empty."""
    called = f"the rubric of the committee member {name!r}:"
    try:
        text = read_file(Path(path), called, RUBRIC_BYTES).decode().strip()
    except UnicodeDecodeError as error:
        raise ConfigError(f"cannot read {called} {path}: it is not UTF-8 text (byte {error.start})") from error
    if not text:
        raise ConfigError(f"{called} {path} is empty; write there what to look for, or leave `rubric` out")
    return text
