"""Requests to a model and its replies, independent of any API."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeAlias

from oven_llm.providers.failures import FailureKind, ModelFailure
from oven_llm.providers.usage import Usage

Messages: TypeAlias = Sequence[Mapping[str, str]]
"""Messages with `role` (system, user or assistant) and `content`, as in chat completions."""
Finish: TypeAlias = Literal["stop", "length", "refusal", "other"]
"""The reason why a reply stopped, as in chat completions, except that they call a refusal `content_filter`."""

REQUEST_OVERHEAD_TOKENS: Final = 512
"""Maximum tokens that an API adds to a request: separators and instructions for schemas."""
MESSAGE_OVERHEAD_TOKENS: Final = 16
"""Maximum tokens that an API adds to each message."""


@dataclass(frozen=True)
class Conversation:
    """One request to a model."""

    messages: Messages
    max_tokens: int
    """Maximum tokens of the reply."""
    schema: Mapping[str, Any] | None = None
    """JSON Schema that the reply must follow, if the endpoint can enforce it; None for free text."""
    temperature: float | None = None
    """Sampling temperature; None for the API's default."""

    @classmethod
    def question(cls, system: str, user: str, schema: Mapping[str, Any] | None, max_tokens: int) -> Conversation:
        """Return a conversation with a system prompt and one user message."""
        return cls(({"role": "system", "content": system}, {"role": "user", "content": user}), max_tokens, schema)

    def text_of(self, role: str) -> str:
        """Return the contents of this role's messages, joined by blank lines."""
        return "\n\n".join(message["content"] for message in self.messages if message["role"] == role)

    @property
    def is_multi_turn(self) -> bool:
        """Whether a part of the conversation was sent before, so that a provider's cache saves money."""
        return any(message["role"] == "assistant" for message in self.messages)

    def max_usage(self) -> Usage:
        """Return the maximum usage of one request. Each token is at least one byte of UTF-8."""
        texts = [message["content"] for message in self.messages]
        if self.schema is not None:
            texts.append(json.dumps(self.schema))
        input_tokens = sum(len(text.encode(errors="replace")) for text in texts)
        input_tokens += REQUEST_OVERHEAD_TOKENS + MESSAGE_OVERHEAD_TOKENS * len(self.messages)
        written_tokens = input_tokens if self.is_multi_turn else 0  # other conversations are not cached
        return Usage(input_tokens, self.max_tokens, written_tokens=written_tokens)


@dataclass(frozen=True)
class TokenLogprob:
    """One token of a reply. Log-probabilities are natural logarithms."""

    token: str
    data: bytes
    """The token's bytes. A token may end in the middle of a character."""
    logprob: float
    top: tuple[tuple[str, float], ...]
    """The most likely tokens at this position with their log-probabilities, best first."""
    top_data: tuple[bytes, ...] = ()
    """The bytes of each token in `top`."""


@dataclass(frozen=True)
class ModelReply:
    """A model's reply with its usage and cost."""

    text: str
    finish: Finish = "stop"
    finish_reason: str = ""
    """The API's name for the reason, or "other" if its documentation does not list the name."""
    logprobs: tuple[TokenLogprob, ...] | None = None
    """Log-probabilities of each token; None if they were not requested, not returned or malformed."""
    model: str = ""
    """The model's name at the endpoint."""
    usage: Usage | None = None
    """Token counts; None if the endpoint did not report them."""
    cost_usd: float | None = None
    """US dollars, including failed attempts that may have been billed; None if the model's price is unknown."""

    def require_complete(self) -> None:
        """Raise ModelFailure if the reply is truncated or a refusal."""
        if self.finish in ("length", "refusal"):
            kind: FailureKind = "truncated" if self.finish == "length" else "refusal"
            raise ModelFailure(kind, f"the reply stopped with {self.finish_reason}")


class LanguageModel(Protocol):
    """A model that continues conversations."""

    @property
    def name(self) -> str:
        """The provider's name as in OpenTelemetry's gen_ai.provider.name."""
        ...

    @property
    def model(self) -> str: ...

    async def ask(self, conversation: Conversation, timeout_s: float) -> ModelReply:
        """Return the model's reply within `timeout_s`, which includes retries. Raises ModelFailure."""
        ...

    async def close(self) -> None: ...
