"""A committee member's settings and the model that it asks: from the one to the other."""

from __future__ import annotations

from typing import Final

from pydantic import ValidationError

from oven_controller.errors import ConfigError, UnknownNameError
from oven_controller.protocol.judge_models import JudgeModel
from oven_controller.settings.model import MemberSettings

PROVIDERS: Final = ("openai", "anthropic")


def judge_of(settings: MemberSettings) -> JudgeModel:
    """The model that a member was configured with."""
    return JudgeModel(provider=settings.api, model=settings.model, base_url=settings.base_url, key_env=settings.key_env)


def with_judge(settings: MemberSettings, judge: JudgeModel) -> MemberSettings:
    """The member with another model; its role stays. Raises UnknownNameError for a provider that there is none of, and
    ConfigError for what does not fit together."""
    if judge.provider not in PROVIDERS:
        raise UnknownNameError("provider", judge.provider, PROVIDERS)
    said = judge.model_dump(include={"model", "base_url", "key_env"}) | {"api": judge.provider}
    try:
        return MemberSettings.model_validate(settings.model_dump() | said)
    except ValidationError as error:
        raise ConfigError(f"the judge {judge.identity} cannot be asked: {first_problem(error)}") from None


def first_problem(error: ValidationError) -> str:
    """Its first finding in one line, without the input."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return (f"{where}: " if where else "") + first["msg"].removeprefix("Value error, ")
