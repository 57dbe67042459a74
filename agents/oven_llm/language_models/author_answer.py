"""What the author's model may answer: prompts by topic. What is unfit is dropped and counted; prose is a failure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, ValidationError

from oven_llm.providers.failures import ModelFailure
from oven_llm.providers.json_object import json_object
from oven_runs.home.authored_prompts import fault, normalized


class _Prompt(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    topic: str
    prompt: str


class _Prompts(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    prompts: list[_Prompt]


@dataclass(frozen=True)
class Written:
    """An answer, checked."""

    prompts: tuple[tuple[str, str], ...]
    """(topic, text)."""
    dropped: Counter[str]
    """By reason: unknown_topic, empty, too_long, control, duplicate, capped."""


def read(text: str, topics: Collection[str], known: Collection[str], most: int) -> Written:
    """`known`: normalized texts that are known; `most`: so many prompts are taken. Raises ModelFailure: bad_json or
    schema."""
    value = json_object(text)
    try:
        given = _Prompts.model_validate(value).prompts
    except ValidationError as error:
        raise ModelFailure("schema", f"{error.error_count()} fields are not as the schema has them") from None
    dropped: Counter[str] = Counter()
    kept: dict[str, tuple[str, str]] = {}  # by normalized text
    for one in given:
        said = one.prompt.strip()
        why = "unknown_topic" if one.topic not in topics else fault(said)
        if not why and len(kept) >= most:
            why = "capped"
        if not why and (normalized(said) in known or normalized(said) in kept):
            why = "duplicate"
        if why:
            dropped[why] += 1
        else:
            kept[normalized(said)] = (one.topic, said)
    return Written(tuple(kept.values()), dropped)
