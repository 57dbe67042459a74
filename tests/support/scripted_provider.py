"""A judge's provider without a network, and groups for it to score."""

from __future__ import annotations

import json
from collections.abc import Callable

from oven_core.protocol.committee_requests import Completion, ScoreRequest
from oven_llm.providers.conversation import Conversation, ModelReply
from oven_llm.providers.usage import Usage, current_tally


class Scripted:
    """A provider that answers by a rule on the candidates' texts."""

    name, model = "openai", "m"

    def __init__(self, rule: Callable[[str], int]) -> None:
        self.rule = rule
        self.shown: list[dict[str, str]] = []

    async def ask(self, conversation: Conversation, timeout_s: float) -> ModelReply:
        data = json.loads(conversation.text_of("user").split("<data>\n")[1].split("\n</data>")[0])
        self.shown.append({answer["id"]: answer["text"] for answer in data["answers"]})
        verdicts = [{"id": key, "reason": "so", "score": self.rule(text)} for key, text in self.shown[-1].items()]
        if (tally := current_tally()) is not None:
            tally.usages.append(Usage(10, 5))
        return ModelReply(json.dumps({"verdicts": verdicts}), model="m", usage=Usage(10, 5))

    async def close(self) -> None:
        pass


def group(*texts: str) -> ScoreRequest:
    completions = tuple(Completion(id=f"{9 - n}f{n}c", text=text) for n, text in enumerate(texts))
    return ScoreRequest(run="r", group="g", prompt="2 + 2?", completions=completions, deadline_s=5)


def scores_of(request: ScoreRequest, scores: dict[str, float]) -> list[float]:
    return [scores[completion.id] for completion in request.completions]
