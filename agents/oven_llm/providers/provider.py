"""What a judge needs of an LLM's API: one question, one answer. Each adapter is this over one official SDK.

Supervisors and teachers have conversations with the same adapters (conversation.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from oven_llm.providers.conversation import Conversation, Conversing, Draw
from oven_llm.providers.terms import AgreedTerms
from oven_llm.providers.usage import Usage
from oven_runs.settings.judge_providers import ModelEndpoint

Outcome: TypeAlias = Literal["complete", "truncated", "refusal"]


@dataclass(frozen=True)
class Question:
    system: str
    user: str
    schema: dict[str, Any]
    """JSON Schema that the answer must follow, where the endpoint can hold it to one."""
    max_tokens: int


@dataclass(frozen=True)
class TokenLogprob:
    """One token of an answer. Log-probabilities are natural logarithms."""

    token: str
    data: bytes
    """What it stands for; a token may end within a letter."""
    logprob: float
    top: tuple[tuple[str, float], ...]
    """The most likely tokens in its place with theirs, best first, as many as were asked for; it may be among them."""
    top_data: tuple[bytes, ...] = ()
    """What each of `top` stands for."""


@dataclass(frozen=True)
class Logprobs:
    """An answer token by token; their bytes joined are its text."""

    tokens: tuple[TokenLogprob, ...]


@dataclass(frozen=True)
class Answer:
    """What an endpoint said, not validated yet: it was billed, whatever it is worth."""

    text: str
    outcome: Outcome
    finish_reason: str
    """The API's own word, one of those that it documents, or "other"."""
    model: str
    usage: Usage | None
    cost_usd: float | None = None
    """What it and the attempts before it cost; None where it was not reckoned, or the model's price is not known."""
    logprobs: Logprobs | None = None
    """None where they were not asked for, or did not come."""


class Provider(Protocol):
    @property
    def name(self) -> str:
        """As in OpenTelemetry's gen_ai.provider.name."""
        ...

    @property
    def model(self) -> str: ...

    async def ask(self, question: Question, timeout_s: float) -> Answer:
        """`timeout_s` is for each HTTP attempt; the caller bounds the whole. Raises ModelFailure for everything that is
        not an answer: the SDK's own retries are behind it then."""
        ...

    async def close(self) -> None: ...


class EndpointProvider(Provider, Conversing, Protocol):
    """One behind an address: what it can do is found out by asking."""

    draws_together: bool
    """The API draws several samples in one request, as far as is known."""

    async def draw(self, conversation: Conversation, samples: int, attempt_s: float) -> Draw:
        """As Samples.draw."""
        ...

    @property
    def asked(self) -> ModelEndpoint:
        """Which model this is, behind which address."""
        ...

    @property
    def terms(self) -> AgreedTerms:
        """What it is asked for beside the answer, after what it has refused."""
        ...
