"""Requests to a model and its replies, independent of any API. Messages and tools are those of recorded traces."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeAlias

from oven_llm.providers.failures import ModelFailure
from oven_llm.providers.usage import Usage
from oven_runs.traces.records import Message, Tool, ToolCall

Finish: TypeAlias = Literal["stop", "length", "tool_calls", "refusal", "other"]
"""Why a reply ended, in the words of chat completions (where a refusal is called `content_filter`)."""
Outcome: TypeAlias = Literal["complete", "truncated", "refusal"]

REQUEST_OVERHEAD: Final = 512
"""Tokens that an API may add to a request: separators, and its own instructions for tools and schemas."""
ITEM_OVERHEAD: Final = 16
"""Tokens that an API may add for each message, tool and call."""


NO_USAGE: Final = Usage(0, 0)


@dataclass(frozen=True)
class Conversation:
    """One request to a model. Raises ValueError for a conversation that no API accepts."""

    messages: tuple[Message, ...]
    max_tokens: int
    schema: Mapping[str, Any] | None = None
    """JSON Schema that the reply must follow, where the endpoint can enforce one."""
    tools: tuple[Tool, ...] = ()
    temperature: float | None = None
    """None: the API's default."""
    stop: tuple[str, ...] = ()
    cached: bool = False
    """Whether it will be sent again, so that the provider should cache it."""

    def __post_init__(self) -> None:
        if all(message.role == "system" for message in self.messages):
            raise ValueError("the conversation has only system messages; add a user message")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens is {self.max_tokens}; give 1 or more")
        if self.temperature is not None and not 0 <= self.temperature <= 2:
            raise ValueError(f"the temperature is {self.temperature:g}; give 0 to 2")
        calls = {call.id for message in self.messages for call in message.calls}
        for number, message in enumerate(self.messages):
            if message.role == "tool" and message.call_id not in calls:
                raise ValueError(f"message {number} answers the call {message.call_id!r}, which no message makes")
            if message.calls and message.role != "assistant":
                raise ValueError(f"message {number} calls tools, but its role is {message.role}, not assistant")

    @classmethod
    def question(cls, system: str, user: str, schema: Mapping[str, Any] | None, max_tokens: int) -> Conversation:
        """A system prompt and one user message."""
        messages = Message(role="system", content=system), Message(role="user", content=user)
        return cls(messages, max_tokens, schema)

    def text_of(self, role: str) -> str:
        """The contents of this role's messages, joined."""
        return "\n\n".join(message.content for message in self.messages if message.role == role)

    @property
    def reused(self) -> bool:
        """Whether a provider's cache pays off: the conversation will be sent again, or has been sent in part."""
        return self.cached or any(message.role == "assistant" for message in self.messages)

    def greatest_usage(self, samples: int = 1) -> Usage:
        """The most tokens that one request can use. A token is at least one byte of UTF-8."""
        calls = [call for message in self.messages for call in message.calls]
        texts = [message.content for message in self.messages]
        texts += [part for call in calls for part in (call.id, call.name, call.arguments)]
        texts += [part for tool in self.tools for part in (tool.name, tool.description, repr(tool.parameters))]
        texts += [json.dumps(self.schema)] if self.schema is not None else []
        items = len(self.messages) + len(calls) + len(self.tools)
        size = sum(len(text.encode(errors="replace")) for text in texts) + REQUEST_OVERHEAD + ITEM_OVERHEAD * items
        return Usage(size, samples * self.max_tokens, written_tokens=size if self.reused else 0)


@dataclass(frozen=True)
class TokenLogprob:
    """One token of a reply. Log-probabilities are natural logarithms."""

    token: str
    data: bytes
    """The token's bytes; a token may end in the middle of a character."""
    logprob: float
    top: tuple[tuple[str, float], ...]
    """The most likely tokens at this position with their log-probabilities, best first."""
    top_data: tuple[bytes, ...] = ()
    """The bytes of each token in `top`."""


@dataclass(frozen=True)
class Sample:
    """One reply as an API returned it."""

    text: str
    calls: tuple[ToolCall, ...] = ()
    finish: Finish = "stop"
    finish_reason: str = ""
    """The API's own word, if its documentation lists it; otherwise "other"."""
    logprobs: tuple[TokenLogprob, ...] | None = None
    """None if they were not requested, not returned or malformed. Joined, their bytes are the text."""


@dataclass(frozen=True)
class Completion:
    """The result of one request: one or more samples, billed together."""

    samples: tuple[Sample, ...]
    usage: Usage | None
    """Usage of all samples together; None if the endpoint did not report it."""
    model: str


@dataclass(frozen=True)
class ModelReply(Sample):
    """One reply with its share of the request's bill: APIs bill the samples of a request together."""

    model: str = ""
    """As the endpoint names it."""
    usage: Usage = NO_USAGE
    reported: bool = True
    """False if the endpoint did not report its usage; `usage` is then the most that it can have been."""
    cost_usd: float | None = None
    """US dollars, including attempts that failed but may have been billed; None if the model's price is unknown."""

    @property
    def message(self) -> Message:
        """The assistant's message that continues the conversation."""
        return Message(role="assistant", content=self.text, calls=self.calls)

    @property
    def outcome(self) -> Outcome:
        """Whether the reply is complete."""
        return "truncated" if self.finish == "length" else "refusal" if self.finish == "refusal" else "complete"

    def require_complete(self) -> None:
        """Raise ModelFailure for a reply that was cut off or refused."""
        if self.outcome != "complete":
            raise ModelFailure(self.outcome, f"the answer ended with {self.finish_reason}")


class SamplesMissing(ModelFailure):
    """Not all samples arrived. `replies` holds those that did and were paid for."""

    def __init__(self, failure: ModelFailure, replies: Sequence[ModelReply]) -> None:
        super().__init__(failure.kind, failure.detail)
        self.replies = tuple(replies)


class LanguageModel(Protocol):
    """A model that continues conversations."""

    @property
    def name(self) -> str:
        """The provider, as in OpenTelemetry's gen_ai.provider.name."""
        ...

    @property
    def model(self) -> str: ...

    async def ask(self, conversation: Conversation, timeout_s: float, samples: int = 1) -> list[ModelReply]:
        """Return as many replies as `samples`. `timeout_s` bounds each request, including its retries.

        Raises ModelFailure if there is no reply, SamplesMissing if some arrived, and ValueError for fewer than one
        sample.
        """
        ...

    async def close(self) -> None: ...
