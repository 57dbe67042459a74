"""Models as the supervisor's loop holds them: one conversation, one answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from oven_agents.judges.failures import JudgeFailure
from oven_agents.judges.usage import Usage

Messages = Sequence[Mapping[str, str]]
"""`role` and `content`, as chat completions have them."""


@dataclass(frozen=True)
class LMResponse:
    """One answer of a model's."""

    text: str
    usage: Usage | None
    """None where the endpoint did not say."""
    elapsed: float
    """Seconds, attempts that failed before it included."""
    model: str = ""
    """As the endpoint called it."""
    usd: float | None = None
    """None: the price is not known."""
    finish: str = ""


class ModelHandler(ABC):
    """A model that is asked. `chat` is called from several threads at a time, up to `concurrency`."""

    model: str
    concurrency: int = 16
    secrets: tuple[str, ...] = ()
    """What must be in no file, such as its key."""

    @abstractmethod
    def chat(self, messages: Messages) -> LMResponse:
        """Raises JudgeFailure for everything that is not an answer."""

    @abstractmethod
    def chat_batch(self, message_batches: Sequence[Messages]) -> list[LMResponse | JudgeFailure]:
        """An entry for each, in their order."""
