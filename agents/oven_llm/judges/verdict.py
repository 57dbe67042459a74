"""What a judge may answer, and reading it: the whole text is one JSON object, with exactly the ids asked for."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError

from oven_llm.providers.failures import ModelFailure
from oven_llm.providers.json_object import json_object

HIGHEST: Final = 10
"""The best score, of whole ones from 0; what a judge gives is divided by it."""

# `enum`, for the range: Anthropic's structured output knows no minimum and maximum. Reason before score, so that the
# score follows from it.
SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "verdicts": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "id": {"type": "string"},
                    "reason": {"type": "string"},
                    "score": {"type": "integer", "enum": list(range(HIGHEST + 1))},
                },
                "required": ["id", "reason", "score"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["verdicts"],
    "additionalProperties": False,
}


class _Verdict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    id: str
    reason: str
    score: int


class _Verdicts(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    verdicts: list[_Verdict]


def read(text: str, ids: Collection[str], reasons: dict[str, str] | None = None) -> dict[str, float]:
    """id → 0..1. Raises ModelFailure: bad_json, schema, wrong_ids or out_of_range; no number is searched for in
    prose. Into `reasons` goes why, by id."""
    value = json_object(text)
    try:
        verdicts = _Verdicts.model_validate(value).verdicts
    except ValidationError as error:
        raise ModelFailure("schema", f"{error.error_count()} fields are not as the schema has them") from None
    given = [verdict.id for verdict in verdicts]
    if len(set(given)) != len(given) or set(given) != set(ids):
        missing, foreign = len(set(ids) - set(given)), len(set(given) - set(ids))
        repeated = len(given) - len(set(given))
        raise ModelFailure("wrong_ids", f"{missing} ids are missing, {foreign} were not asked for, {repeated} repeated")
    outside = sum(not 0 <= verdict.score <= HIGHEST for verdict in verdicts)
    if outside:
        raise ModelFailure("out_of_range", f"{outside} scores are outside 0..{HIGHEST}")
    if reasons is not None:
        reasons.update((verdict.id, verdict.reason) for verdict in verdicts)
    return {verdict.id: verdict.score / HIGHEST for verdict in verdicts}
