"""The verdict that a judge must reply with: one JSON object with exactly the ids that it was shown."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from oven_llm.providers.failures import ModelFailure
from oven_llm.providers.structured_reply import ReplyForm, object_schema, read_reply

HIGHEST: Final = 10
"""The best score. Scores are whole numbers from 0, and are divided by it."""

# `enum` gives the range, because Anthropic's structured output supports no minimum and maximum. The reason comes before
# the score, so that the score follows from it.
SCHEMA: Final = object_schema(
    verdicts={
        "type": "array",
        "items": object_schema(
            id={"type": "string"},
            reason={"type": "string"},
            score={"type": "integer", "enum": list(range(HIGHEST + 1))},
        ),
    }
)


class _Verdict(ReplyForm):
    id: str
    reason: str
    score: int


class _Verdicts(ReplyForm):
    verdicts: list[_Verdict]


def read(text: str, ids: Collection[str], reasons: dict[str, str] | None = None) -> dict[str, float]:
    """Return a score from 0 to 1 for each id, and enter the reasons into `reasons`.

    Raises ModelFailure: bad_json, schema, wrong_ids or out_of_range.
    """
    verdicts = read_reply(text, _Verdicts).verdicts
    scored = [verdict.id for verdict in verdicts]
    if len(set(scored)) != len(scored) or set(scored) != set(ids):
        missing, foreign = len(set(ids) - set(scored)), len(set(scored) - set(ids))
        repeated = len(scored) - len(set(scored))
        raise ModelFailure("wrong_ids", f"{missing} ids are missing, {foreign} were not asked for, {repeated} repeated")
    outside = sum(not 0 <= verdict.score <= HIGHEST for verdict in verdicts)
    if outside:
        raise ModelFailure("out_of_range", f"{outside} scores are outside 0..{HIGHEST}")
    if reasons is not None:
        reasons.update((verdict.id, verdict.reason) for verdict in verdicts)
    return {verdict.id: verdict.score / HIGHEST for verdict in verdicts}
