"""What is said to a model and what it answers, in no API's own form: messages, tools, samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from oven_llm.providers.failures import ModelFailure
from oven_llm.providers.usage import Usage

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
Finish: TypeAlias = Literal["stop", "length", "tool_calls", "refusal", "other"]
"""Why an answer ended, in the words of chat completions; a refusal is `content_filter` there."""


@dataclass(frozen=True)
class ToolCall:
    """A model's wish that a tool be called."""

    id: str
    name: str
    arguments: str
    """As the model wrote it: mostly one JSON object, and not checked."""


@dataclass(frozen=True)
class Message:
    """One turn. `calls` are an assistant's; `call_id` says which of them a tool's message answers."""

    role: Role
    content: str
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""


@dataclass(frozen=True)
class Tool:
    """A tool that a model may call."""

    name: str
    description: str
    parameters: dict[str, Any]
    """JSON Schema of the arguments, an object."""


@dataclass(frozen=True)
class Answer:
    """One sample. Of several that one request brought, the tokens and the cost are that request's in equal shares: APIs
    bill them together, and the sum is what was billed."""

    text: str
    calls: tuple[ToolCall, ...]
    tokens_in: int
    """Of the whole prompt, what came from a cache included."""
    tokens_cached: int
    tokens_out: int
    usd: float | None
    """US dollars; None where the model's price is not known."""
    seconds: float
    """Of the request that it came with, its repetitions included."""
    model: str
    """As the endpoint calls itself."""
    finish: Finish
    counted: bool = True
    """False: the endpoint did not say what it used, and the tokens are the most that it can have been."""

    @property
    def message(self) -> Message:
        """The turn that it adds to the conversation."""
        return Message("assistant", self.text, self.calls)

    @property
    def usage(self) -> Usage:
        return Usage(self.tokens_in, self.tokens_out, self.tokens_cached)


@dataclass(frozen=True)
class Conversation:
    """What one request says. Raises ValueError for what no API takes."""

    messages: tuple[Message, ...]
    max_tokens: int
    tools: tuple[Tool, ...] = ()
    temperature: float | None = None
    """None: the API's own."""
    stop: tuple[str, ...] = ()
    reused: bool = False
    """It will be sent again, as it is or as the beginning of a longer one: worth a place in a cache."""

    def __post_init__(self) -> None:
        if all(message.role == "system" for message in self.messages):
            raise ValueError("the conversation has no message but the system's; add the user's")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens is {self.max_tokens}; give 1 or more")
        if self.temperature is not None and not 0 <= self.temperature <= 2:
            raise ValueError(f"the temperature is {self.temperature:g}; give 0 to 2")
        asked = {call.id for message in self.messages for call in message.calls}
        for number, message in enumerate(self.messages):
            if message.role == "tool" and message.call_id not in asked:
                raise ValueError(f"message {number} answers the call {message.call_id!r}, which no message asks for")
            if message.calls and message.role != "assistant":
                raise ValueError(f"message {number} calls tools and is the {message.role}'s; only an assistant's may")


@dataclass(frozen=True)
class Sample:
    """One answer as a request brought it."""

    text: str
    calls: tuple[ToolCall, ...]
    finish: Finish


@dataclass(frozen=True)
class Draw:
    """What one request brought: one or more samples, billed together."""

    samples: tuple[Sample, ...]
    usage: Usage | None
    """Of all samples together; None where the endpoint did not say."""
    usd: float | None
    model: str


class ConversationFailure(ModelFailure):
    """Why there are not all of the samples. `answers` are those that had come, and were paid for."""

    def __init__(self, failure: ModelFailure, answers: Sequence[Answer]) -> None:
        super().__init__(failure.kind, failure.detail)
        self.answers = tuple(answers)


class Conversing(Protocol):
    """A model that answers conversations."""

    @property
    def name(self) -> str:
        """As in OpenTelemetry's gen_ai.provider.name."""
        ...

    @property
    def model(self) -> str: ...

    async def converse(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] = (),
        samples: int = 1,
        max_tokens: int,
        temperature: float | None = None,
        stop: Sequence[str] = (),
        timeout_s: float,
    ) -> list[Answer]:
        """`samples` answers. `timeout_s` bounds each request, its repetitions included; an endpoint that draws one
        sample a request is asked for the first alone, so that its cache is warm, and then for the others at once.

        Raises ConversationFailure, a ModelFailure with the answers that had come by then; ValueError for what no API
        takes."""
        ...

    async def close(self) -> None: ...
