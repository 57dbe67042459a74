"""A model that says what it was given to say, at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from oven_llm.providers.usage import Usage
from oven_llm.supervisor.models import LMResponse, Messages, ModelHandler


class ScriptedModel(ModelHandler):
    """Answers with `answers`, one after another, and with the last one from then on."""

    def __init__(self, answers: Sequence[str]) -> None:
        self.model = "scripted"
        self._left: Iterator[str] = iter(answers)
        self._last = answers[-1]

    def chat(self, messages: Messages) -> LMResponse:
        return LMResponse(next(self._left, self._last), Usage(0, 0), 0.0, self.model, 0.0, "stop")


def program(code: str) -> str:
    return f"```repl\n{code}\n```"
