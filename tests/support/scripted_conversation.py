"""Conversations as the judges' endpoint reads and answers them: messages, tools, several samples, and what each cost.

A token is four bytes here, begun ones included, and a cache holds every conversation as far as its last whole message:
so a bill can be checked to the token.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

FAULTS: Final = ("429", "500", "529", "reset", "hang", "cutbody", "html", "truncated", "refusal", "arguments")
"""What `m@chaos` draws from in a conversation. `arguments`: those of a call end in the middle."""
BYTES_PER_TOKEN: Final = 4


@dataclass(frozen=True)
class Said:
    """One message, in no API's own form."""

    role: str
    text: str
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True)
class Call:
    """A tool's name and its arguments, JSON."""

    name: str
    arguments: str
    id: str = ""


@dataclass(frozen=True)
class Asked:
    """One request for one sample."""

    model: str
    """Without its script of faults."""
    messages: tuple[Said, ...]
    tools: tuple[dict[str, Any], ...]
    """As they were sent: `name`, `description`, and the schema as `parameters`."""
    sample: int
    """How many samples of this conversation there were before, of this model."""
    temperature: float | None = None


Script: TypeAlias = Callable[[Asked], Said]
"""What a model says. Its calls need no ids."""


def default_script(asked: Asked) -> Said:
    """It calls the first tool, with the last message as each of the arguments, until a tool has answered."""
    last = asked.messages[-1]
    number = f" (sample {asked.sample})" if asked.sample else ""
    if asked.tools and last.role != "tool":
        properties = asked.tools[0]["parameters"].get("properties", {})
        arguments = {name: _fitting(schema, last.text + number) for name, schema in properties.items()}
        return Said("assistant", "", (Call(asked.tools[0]["name"], json.dumps(arguments)),))
    return Said("assistant", f"The answer to “{last.text}” is seven.{number}")


def _fitting(schema: dict[str, Any], text: str) -> Any:
    return {"integer": 7, "number": 7.0, "boolean": True}.get(schema.get("type", ""), text)


@dataclass
class Bills:
    """What conversations cost, by model, and what its cache holds."""

    tokens: dict[str, Counter[str]] = field(default_factory=dict)
    """Model → `input` (of whole prompts), `cached` (of it), `written` (of it, to Anthropic's cache), `output`."""
    _warm: set[tuple[str, str]] = field(default_factory=set)
    _samples: Counter[tuple[str, str]] = field(default_factory=Counter)

    def samples_before(self, model: str, messages: Sequence[Said], count: int) -> int:
        """How many of this conversation were drawn before; `count` more are drawn now."""
        key = (model, _digest(messages))
        before = self._samples[key]
        self._samples[key] += count
        return before

    def book(self, model: str, messages: Sequence[Said], answers: Sequence[Said], *, keep: bool) -> Counter[str]:
        """The bill of one request. `keep`: the conversation is put in the cache."""
        whole = sum(_tokens(one) for one in messages)
        cached = 0
        for end in range(len(messages), 0, -1):
            if (model, _digest(messages[:end])) in self._warm:
                cached = sum(_tokens(one) for one in messages[:end])
                break
        if keep:
            self._warm |= {(model, _digest(messages[:end])) for end in range(1, len(messages) + 1)}
        bill = Counter(
            input=whole,
            cached=cached,
            written=whole - cached if keep else 0,
            output=sum(_tokens(one) for one in answers),
        )
        self.tokens.setdefault(model, Counter()).update(bill)
        return bill


def _tokens(one: Said) -> int:
    written = one.text + "".join(call.name + call.arguments for call in one.calls)
    return -(-len(written.encode()) // BYTES_PER_TOKEN)


def _digest(messages: Sequence[Said]) -> str:
    return hashlib.sha256(repr(messages).encode()).hexdigest()


def spoilt(fault: str, said: Said) -> tuple[Said, str]:
    """(the answer, how it ended) with a fault in it; other faults leave it as it is."""
    ended = "tool_calls" if said.calls else "stop"
    match fault:
        case "truncated":
            return Said("assistant", said.text[: len(said.text) // 2]), "length"
        case "refusal":
            return Said("assistant", "I cannot help with that."), "refusal"
        case "arguments":
            cut = tuple(Call(call.name, call.arguments[: len(call.arguments) // 2], call.id) for call in said.calls)
            return Said("assistant", said.text, cut), ended
    return said, ended


def openai_messages(body: dict[str, Any]) -> tuple[Said, ...]:
    """Of a request for chat completions."""
    return tuple(
        Said(
            one["role"],
            one.get("content") or "",
            tuple(
                Call(call["function"]["name"], call["function"]["arguments"], call["id"])
                for call in one.get("tool_calls", ())
            ),
        )
        for one in body["messages"]
    )


def openai_answer(answers: Sequence[tuple[Said, str]], bill: Counter[str]) -> dict[str, Any]:
    """Of (answer, how it ended), one a choice."""
    choices = []
    for index, (said, ended) in enumerate(answers):
        refused = ended == "refusal"
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if refused or not said.text else said.text,
            "refusal": said.text if refused else None,
        }
        if said.calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in said.calls
            ]
        choices.append({"index": index, "message": message, "finish_reason": "stop" if refused else ended})
    return {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": "judge-2026-01-01",
        "choices": choices,
        "usage": {
            "prompt_tokens": bill["input"],
            "completion_tokens": bill["output"],
            "total_tokens": bill["input"] + bill["output"],
            "prompt_tokens_details": {"cached_tokens": bill["cached"]},
        },
    }


def anthropic_messages(body: dict[str, Any]) -> tuple[Said, ...]:
    """Of a request for a message: each block that is a tool's result is a message of the tool's."""
    found = [Said("system", body["system"])] if body.get("system") else []
    for one in body["messages"]:
        blocks = [{"type": "text", "text": one["content"]}] if isinstance(one["content"], str) else one["content"]
        found += [Said("tool", block["content"]) for block in blocks if block["type"] == "tool_result"]
        text = "".join(block["text"] for block in blocks if block["type"] == "text")
        calls = tuple(
            Call(block["name"], json.dumps(block["input"]), block["id"])
            for block in blocks
            if block["type"] == "tool_use"
        )
        if text or calls:
            found.append(Said(one["role"], text, calls))
    return tuple(found)


def anthropic_answer(said: Said, ended: str, bill: Counter[str]) -> dict[str, Any]:
    """A message. The API parses a call's arguments itself: what is cut there is an empty object."""
    content: list[dict[str, Any]] = [] if ended == "refusal" or not said.text else [{"type": "text", "text": said.text}]
    for call in said.calls:
        try:
            given = json.loads(call.arguments)
        except ValueError:
            given = {}
        content.append({"type": "tool_use", "id": call.id, "name": call.name, "input": given})
    stop = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "refusal": "refusal"}[ended]
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
