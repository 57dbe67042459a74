"""Tokenize preference pairs: the state and its two candidate actions."""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from oven_core.errors import ConfigError
from oven_runs.traces.formats.chat_messages import to_template, to_tool
from oven_runs.traces.records import Message, Pair, Tool

log = logging.getLogger("oven.learner")


@dataclass(frozen=True, slots=True)
class PairTokens:
    """Token ids without padding. Actions include their end-of-turn token."""

    state: tuple[int, ...]
    chosen: tuple[int, ...]
    rejected: tuple[int, ...]


def tokenized(trainer: Any, pairs: Sequence[Pair | PairTokens], name: str, longest: int | None) -> list[PairTokens]:
    """Render pairs with the trainer's chat template and each pair's tools.

    Unusable pairs are skipped, and a warning counts them by reason. `longest` limits state plus action, in tokens.
    Raises ConfigError, naming the channel `name`, if no pair is usable or if ids are outside the policy's vocabulary.
    """
    policy = trainer.accelerator.unwrap_model(trainer.model)
    rows = int(policy.get_input_embeddings().weight.shape[0])
    window = min(longest or math.inf, getattr(policy.config, "max_position_embeddings", None) or math.inf)
    ends = end_tokens(trainer.processing_class, policy)
    skipped: Counter[str] = Counter()
    usable: list[PairTokens] = []
    for number, pair in enumerate(pairs):
        tokens = pair if isinstance(pair, PairTokens) else _rendered(trainer, pair, ends)
        if isinstance(tokens, str):
            skipped[tokens] += 1
            continue
        beyond = next(
            (token for token in (*tokens.state, *tokens.chosen, *tokens.rejected) if not 0 <= token < rows), None
        )
        if beyond is not None:
            raise ConfigError(
                f"channel.{name}: pair {number} has token {beyond}, and the policy's vocabulary has {rows:,}; use "
                "pairs as messages, which are tokenized again"
            )
        reason = _problem(tokens, window)
        if reason:
            skipped[reason] += 1
        else:
            usable.append(tokens)
    summary = ", ".join(f"{count} {reason}" for reason, count in sorted(skipped.items()))
    if not usable:
        raise ConfigError(
            f"channel.{name}: none of {len(pairs)} pairs is usable{': ' + summary if summary else ''}; create "
            "others with `oven-controller traces pairs`"
        )
    if skipped:
        log.warning("channel.%s: %d of %d pairs are skipped: %s", name, skipped.total(), len(pairs), summary)
    return usable


def vocabulary(tokenizer: Any) -> str:
    """Return a digest of a tokenizer's vocabulary, 16 hexadecimal digits. Traces store it as the policy's
    `vocabulary`."""
    table = sorted(getattr(tokenizer, "tokenizer", tokenizer).get_vocab().items())
    return hashlib.sha256(json.dumps(table).encode()).hexdigest()[:16]


def _rendered(trainer: Any, pair: Pair, ends: Collection[int]) -> PairTokens | str:
    """Return the tokens, or the reason why the pair is unusable."""
    tokenizer = trainer.processing_class
    if getattr(trainer, "chat_template", None) is None and getattr(tokenizer, "chat_template", None) is None:
        raise ConfigError("pairs are conversations, and the tokenizer has no chat template; set one")
    options = {"chat_template": trainer.chat_template, **trainer.chat_template_kwargs}
    state, (chosen, rejected) = rendered(
        tokenizer, pair.state, pair.tools, (pair.chosen, pair.rejected), ends, **options
    )
    if chosen is None or rejected is None:
        return "whose state the chat template renders otherwise when an action follows"
    return PairTokens(state, chosen, rejected)


def rendered(
    tokenizer: Any,
    state: Sequence[Message],
    tools: Sequence[Tool],
    actions: Sequence[Message],
    ends: Collection[int],
    **options: Any,
) -> tuple[tuple[int, ...], list[tuple[int, ...] | None]]:
    """Return the ids of a state, and of each action after it up to its end of turn (`ends`).

    Some templates add a line break after the end of turn, which no policy samples. An action is None if the template
    renders the state differently before it. `options` are passed to `apply_chat_template`.
    """
    tool_schemas = [to_tool(tool) for tool in tools] or None

    def ids(messages: Sequence[Message], *, generation_prompt: bool) -> tuple[int, ...]:
        encoded = tokenizer.apply_chat_template(
            [to_template(message) for message in messages],
            tools=tool_schemas,
            add_generation_prompt=generation_prompt,
            tokenize=True,
            return_dict=True,
            **options,
        )
        return tuple(encoded["input_ids"])

    before = ids(state, generation_prompt=True)
    action_ids: list[tuple[int, ...] | None] = []
    for action in actions:
        whole = ids([*state, action], generation_prompt=False)
        same = whole[: len(before)] == before
        action_ids.append(_to_the_end(whole[len(before) :], ends) if same else None)
    return before, action_ids


def end_tokens(tokenizer: Any, model: Any) -> frozenset[int]:
    """Return the ids that end a turn: the tokenizer's, and those at which the model's generation stops."""
    model_ends = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    own = getattr(tokenizer, "tokenizer", tokenizer).eos_token_id  # a processor contains a tokenizer
    return frozenset(
        token for token in (own, *(model_ends if isinstance(model_ends, list) else [model_ends])) if token is not None
    )


def _to_the_end(action: tuple[int, ...], ends: Collection[int]) -> tuple[int, ...]:
    last = max((index for index, token in enumerate(action) if token in ends), default=len(action) - 1)
    return action[: last + 1]


def _problem(pair: PairTokens, window: float) -> str:
    if not pair.state:
        return "with a state of no tokens"
    if not pair.chosen or not pair.rejected:
        return "with an action of no tokens"
    if pair.chosen == pair.rejected:
        return "whose two actions are the same tokens"
    if len(pair.state) + max(len(pair.chosen), len(pair.rejected)) > window:
        return f"longer than {window:,} tokens"
    return ""
