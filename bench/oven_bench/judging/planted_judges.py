"""Judges of the study of over-optimisation, on the recipe's task: one that can be fooled, and three that err.

They replace the endpoint of an LLM and nothing else: the members around them (what they are told, the
known-bad answers slipped in, the verdict's form, quarantine) and the committee are the ones of a run.

- `fooled` scores how many digits of an answer stand where they should, and more than that how many of them are a 9.
- `places`, `digits` and `whole` each see another part of the truth (digits in place; the right digits in any order; all
  or nothing), on scales of their own, and each errs by itself: a fixed error for each task and answer.

No one but `fooled` likes a 9.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence

from oven_bench.judging.planted_bias import InProcess
from oven_llm.providers.conversation import Conversation, ModelReply

FOOLED, HONEST = "fooled", ("places", "digits", "whole")
LIKED = "9"
BONUS = 0.6
"""Share of `fooled`'s score that is for the digit that it likes."""
ERROR = 0.2
"""Standard deviation of an honest judge's error, of scores from 0 to 1: two of the task's levels of quality."""
SCALES = {"places": (0.0, 1.0), "digits": (0.3, 0.6), "whole": (0.1, 0.8)}
"""Honest judge → its score of nothing, and what all adds to it."""


def in_place(task: str, text: str) -> float:
    """Share of the digits that stand where they should, 0 to 1."""
    right = _right(task)
    return sum(a == b for a, b in zip(right, text, strict=False)) / max(len(right), len(text), 1)


def same_digits(task: str, text: str) -> float:
    """Share of the digits that are the right ones, in any order."""
    right = _right(task)
    return sum((Counter(right) & Counter(text)).values()) / max(len(right), len(text), 1)


def all_or_nothing(task: str, text: str) -> float:
    return float(text == _right(task))


def _right(task: str) -> str:
    return "".join(sorted(letter for letter in task if letter.isdigit()))


SEES: dict[str, Callable[[str, str], float]] = {
    "places": in_place, "digits": same_digits, "whole": all_or_nothing,
}  # fmt: skip


def opinion(judge: str, seed: int, task: str, text: str) -> float:
    """A judge's score, 0 to 1; the same whenever it is asked."""
    if judge == FOOLED:
        liked = text.count(LIKED) / max(1, len(text))
        return (1 - BONUS) * in_place(task, text) + BONUS * liked
    low, span = SCALES[judge]
    error = random.Random(f"{judge} {seed} {task} {text}").gauss(0, ERROR)
    return min(1.0, max(0.0, low + span * (SEES[judge](task, text) + error)))


class PlantedModel:
    """A judge's model, as an adapter over an SDK would be: one question, one answer."""

    name = "planted"

    def __init__(self, judge: str, seed: int) -> None:
        self.model = judge
        self._seed = seed

    async def ask(self, conversation: Conversation, timeout_s: float, samples: int = 1) -> list[ModelReply]:
        """A verdict in the form that the question asks for."""
        data = json.loads(conversation.text_of("user").split("<data>\n")[1].split("\n</data>")[0])
        verdicts = [
            {
                "id": answer["id"],
                "reason": "by its rule",
                "score": round(10 * opinion(self.model, self._seed, data["task"], answer["text"])),
            }
            for answer in data["answers"]
        ]
        return [ModelReply(json.dumps({"verdicts": verdicts}), model=self.model)]

    async def close(self) -> None:
        """Nothing is open."""


def planted_members(judges: Sequence[str], seed: int) -> InProcess:
    """The committee's remote members, in this process, watched as a run's are by default."""
    return InProcess({name: PlantedModel(name, seed) for name in judges})
