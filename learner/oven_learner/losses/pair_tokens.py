"""Preference pairs as tokens: the state, and the two actions that may follow it."""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from oven_controller.errors import ConfigError
from oven_controller.traces.records import Message, Pair, Tool

log = logging.getLogger("oven.learner")


@dataclass(frozen=True, slots=True)
class PairTokens:
    """Ids without padding. The actions end with their end of turn."""

    state: tuple[int, ...]
    chosen: tuple[int, ...]
    rejected: tuple[int, ...]


def tokenized(trainer: Any, pairs: Sequence[Pair | PairTokens], name: str, longest: int | None) -> list[PairTokens]:
    """Rendered by the trainer's own chat template, with each pair's tools; a pair that cannot be trained on is left
    out and counted by its reason, in the log. `longest` bounds state and action together, in tokens.

    Raises ConfigError, as the channel `name`, where no pair is left, and for ids that are not of the policy's
    vocabulary.
    """
    policy = trainer.accelerator.unwrap_model(trainer.model)
    rows = int(policy.get_input_embeddings().weight.shape[0])
    window = min(longest or math.inf, getattr(policy.config, "max_position_embeddings", None) or math.inf)
    left_out: Counter[str] = Counter()
    kept: list[PairTokens] = []
    for number, pair in enumerate(pairs):
        made = pair if isinstance(pair, PairTokens) else _rendered(trainer, pair)
        if isinstance(made, str):
            left_out[made] += 1
            continue
        beyond = next((one for one in (*made.state, *made.chosen, *made.rejected) if not 0 <= one < rows), None)
        if beyond is not None:
            raise ConfigError(
                f"channel.{name}: pair {number} has token {beyond}, and the policy's vocabulary has {rows:,}; its "
                "tokens are of another one: give pairs as messages, which are rendered anew"
            )
        reason = _problem(made, window)
        if reason:
            left_out[reason] += 1
        else:
            kept.append(made)
    said = ", ".join(f"{count} {reason}" for reason, count in sorted(left_out.items()))
    if not kept:
        raise ConfigError(
            f"channel.{name}: none of {len(pairs)} pairs can be trained on{': ' + said if said else ''}; make others "
            "with `oven-controller traces pairs`"
        )
    if left_out:
        log.warning("channel.%s: %d of %d pairs are left out: %s", name, left_out.total(), len(pairs), said)
    return kept


def vocabulary(tokenizer: Any) -> str:
    """A digest of what a tokenizer's ids mean, 16 hexadecimal digits: what a policy's `vocabulary` in a trace says."""
    table = sorted(getattr(tokenizer, "tokenizer", tokenizer).get_vocab().items())
    return hashlib.sha256(json.dumps(table).encode()).hexdigest()[:16]


def _rendered(trainer: Any, pair: Pair) -> PairTokens | str:
    """The tokens, or why there are none."""
    state = [chat_message(message) for message in pair.state]
    tools = [chat_tool(tool) for tool in pair.tools] or None
    before = _render(trainer, state, tools, add_generation_prompt=True)
    actions = []
    for action in (pair.chosen, pair.rejected):
        whole = _render(trainer, [*state, chat_message(action)], tools, add_generation_prompt=False)
        if whole[: len(before)] != before:
            return "whose state the chat template renders otherwise when an action follows"
        actions.append(to_the_end(whole[len(before) :], trainer.processing_class))
    return PairTokens(tuple(before), *actions)


def _render(trainer: Any, messages: list[dict[str, Any]], tools: Any, *, add_generation_prompt: bool) -> list[int]:
    words = trainer.processing_class
    if getattr(trainer, "chat_template", None) is None and getattr(words, "chat_template", None) is None:
        raise ConfigError("pairs are conversations, and the tokenizer has no chat template; give it one")
    ids = words.apply_chat_template(
        messages,
        tools=tools,
        chat_template=trainer.chat_template,
        add_generation_prompt=add_generation_prompt,
        tokenize=True,
        return_dict=True,
        **trainer.chat_template_kwargs,
    )["input_ids"]
    return list(ids)


def to_the_end(action: list[int], tokenizer: Any) -> tuple[int, ...]:
    """Up to the last end of turn: some templates write a line break behind it, which no policy samples."""
    ends = [place for place, token in enumerate(action) if token == tokenizer.eos_token_id]
    return tuple(action[: ends[-1] + 1] if ends else action)


def _problem(pair: PairTokens, window: float) -> str:
    if not pair.chosen or not pair.rejected:
        return "with an action of no tokens"
    if pair.chosen == pair.rejected:
        return "whose two actions are the same tokens"
    if len(pair.state) + max(len(pair.chosen), len(pair.rejected)) > window:
        return f"longer than {window:,} tokens"
    return ""


def chat_message(message: Message) -> dict[str, Any]:
    """As chat templates take it. Arguments that are not JSON stay text."""
    made: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        made["reasoning_content"] = message.reasoning
    if message.calls:
        made["tool_calls"] = [
            {"type": "function", "function": {"name": call.name, "arguments": _arguments(call.arguments)}}
            for call in message.calls
        ]
    if message.role == "tool" and message.name:
        made["name"] = message.name
    return made


def chat_tool(tool: Tool) -> dict[str, Any]:
    """As chat templates take it: OpenAI's form."""
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
    }


def _arguments(written: str) -> Any:
    try:
        return json.loads(written or "{}")
    except ValueError:
        return written
