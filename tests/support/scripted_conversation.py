"""Conversations as the judges' endpoint reads and answers them: messages, and what each cost.

A token is four bytes here, begun ones included, and a cache holds every conversation as far as its last whole message:
so a bill can be checked to the token.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

FAULTS: Final = ("429", "500", "529", "reset", "hang", "cutbody", "html", "truncated", "refusal")
"""What `m@chaos` draws from in a conversation."""
BYTES_PER_TOKEN: Final = 4


@dataclass(frozen=True)
class ChatMessage:
    """One message, independent of any API's format."""

    role: str
    text: str


@dataclass(frozen=True)
class ChatRequest:
    """A request for one reply."""

    model: str
    """Without its script of faults."""
    messages: tuple[ChatMessage, ...]


Script: TypeAlias = Callable[[ChatRequest], ChatMessage]
"""What a model says."""


def default_script(request: ChatRequest) -> ChatMessage:
    return ChatMessage("assistant", f"The answer to “{request.messages[-1].text}” is seven.")


@dataclass
class Bills:
    """The costs of conversations by model, and the content of the cache."""

    tokens: dict[str, Counter[str]] = field(default_factory=dict)
    """Model → `input` (of whole prompts), `cached` (of it), `written` (of it, to Anthropic's cache), `output`."""
    _warm: set[tuple[str, str]] = field(default_factory=set)

    def book(self, model: str, messages: Sequence[ChatMessage], answer: ChatMessage, *, keep: bool) -> Counter[str]:
        """Return the bill of one request. `keep`: put the conversation into the cache."""
        whole = sum(_tokens(message) for message in messages)
        cached = 0
        for end in range(len(messages), 0, -1):
            if (model, _digest(messages[:end])) in self._warm:
                cached = sum(_tokens(message) for message in messages[:end])
                break
        if keep:
            self._warm |= {(model, _digest(messages[:end])) for end in range(1, len(messages) + 1)}
        bill = Counter(
            input=whole,
            cached=cached,
            written=whole - cached if keep else 0,
            output=_tokens(answer),
        )
        self.tokens.setdefault(model, Counter()).update(bill)
        return bill


def _tokens(message: ChatMessage) -> int:
    return -(-len(message.text.encode()) // BYTES_PER_TOKEN)


def _digest(messages: Sequence[ChatMessage]) -> str:
    return hashlib.sha256(repr(messages).encode()).hexdigest()


def spoilt(fault: str, reply: ChatMessage) -> tuple[ChatMessage, str]:
    """Return (answer, finish reason) with a fault in the answer. Other faults leave it unchanged."""
    match fault:
        case "truncated":
            return ChatMessage("assistant", reply.text[: len(reply.text) // 2]), "length"
        case "refusal":
            return ChatMessage("assistant", "I cannot help with that."), "refusal"
    return reply, "stop"


def openai_messages(body: dict[str, Any]) -> tuple[ChatMessage, ...]:
    """Return the messages of a request for chat completions."""
    return tuple(ChatMessage(message["role"], message["content"]) for message in body["messages"])


def openai_answer(reply: ChatMessage, ended: str, bill: Counter[str]) -> dict[str, Any]:
    refused = ended == "refusal"
    message: dict[str, Any] = {
        "role": "assistant",
        "content": None if refused else reply.text,
        "refusal": reply.text if refused else None,
    }
    return {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": "judge-2026-01-01",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop" if refused else ended}],
        "usage": {
            "prompt_tokens": bill["input"],
            "completion_tokens": bill["output"],
            "total_tokens": bill["input"] + bill["output"],
            "prompt_tokens_details": {"cached_tokens": bill["cached"]},
        },
    }


def anthropic_messages(body: dict[str, Any]) -> tuple[ChatMessage, ...]:
    """Return the messages of a request to the messages API."""
    messages = [ChatMessage("system", body["system"])] if body.get("system") else []
    for message in body["messages"]:
        content = message["content"]
        text = content if isinstance(content, str) else "".join(block["text"] for block in content)
        messages.append(ChatMessage(message["role"], text))
    return tuple(messages)


def anthropic_answer(reply: ChatMessage, ended: str, bill: Counter[str]) -> dict[str, Any]:
    content: list[dict[str, Any]] = (
        [] if ended == "refusal" or not reply.text else [{"type": "text", "text": reply.text}]
    )
    stop = {"stop": "end_turn", "length": "max_tokens", "refusal": "refusal"}[ended]
    return {
        "id": "m1",
        "type": "message",
        "role": "assistant",
        "model": "judge-2026-01-01",
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {
            "input_tokens": bill["input"] - bill["cached"] - bill["written"],
            "output_tokens": bill["output"],
            "cache_read_input_tokens": bill["cached"],
            "cache_creation_input_tokens": bill["written"],
        },
    }
