"""Models of a supervised run without a network: each answers by a function of its prompt."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from oven_llm.providers.conversation import Messages, ModelReply
from oven_llm.providers.usage import Usage
from oven_llm.supervisor.model_handlers import ModelHandler

USED = Usage(10, 5)


class ScriptedHandler(ModelHandler):
    """A model. `says` gets the text of the last message; the call raises its errors. `usd`: the cost of a call."""

    def __init__(
        self,
        says: Callable[[str], str],
        *,
        model: str = "scripted",
        usage: Usage | None = USED,
        usd: float | None = 0.001,
        secrets: tuple[str, ...] = (),
    ) -> None:
        self.model, self.secrets = model, secrets
        self._says, self._usage, self._usd = says, usage, usd
        self.questions: list[str] = []
        self.seen: list[Messages] = []
        self._lock = threading.Lock()

    def chat(self, messages: Messages) -> ModelReply:
        with self._lock:
            self.questions.append(messages[-1]["content"])
            self.seen.append(messages)
        text = self._says(messages[-1]["content"])
        return ModelReply(text, model=self.model, usage=self._usage, cost_usd=self._usd)


def in_order(*answers: str | Exception) -> Callable[[str], str]:
    """Return a script that gives these answers in order. Each further call is an AssertionError."""
    remaining: Iterator[str | Exception] = iter(answers)

    def says(_: str) -> str:
        answer = next(remaining, AssertionError("it was asked once more than the script has answers"))
        if isinstance(answer, Exception):
            raise answer
        return answer

    return says


def program(code: str) -> str:
    return f"Let me look.\n```repl\n{code}\n```\n"
