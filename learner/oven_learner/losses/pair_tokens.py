"""Preference pairs as tokens: the state, and the two actions that may follow it."""

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
    ends = end_tokens(trainer.processing_class, policy)
    left_out: Counter[str] = Counter()
    kept: list[PairTokens] = []
    for number, pair in enumerate(pairs):
        made = pair if isinstance(pair, PairTokens) else _rendered(trainer, pair, ends)
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


def _rendered(trainer: Any, pair: Pair, ends: Collection[int]) -> PairTokens | str:
    """The tokens, or why there are none."""
    words = trainer.processing_class
    if getattr(trainer, "chat_template", None) is None and getattr(words, "chat_template", None) is None:
        raise ConfigError("pairs are conversations, and the tokenizer has no chat template; give it one")
    options = {"chat_template": trainer.chat_template, **trainer.chat_template_kwargs}
    state, (chosen, rejected) = rendered(words, pair.state, pair.tools, (pair.chosen, pair.rejected), ends, **options)
    if chosen is None or rejected is None:
        return "whose state the chat template renders otherwise when an action follows"
    return PairTokens(state, chosen, rejected)


def rendered(
    words: Any,
    state: Sequence[Message],
    tools: Sequence[Tool],
    actions: Sequence[Message],
    ends: Collection[int],
    **options: Any,
) -> tuple[tuple[int, ...], list[tuple[int, ...] | None]]:
    """The ids of a state, and of each action after it, up to its end of turn (`ends`): some templates write a line
    break behind it, which no policy samples. None for an action before which the template renders the state otherwise.
    `options`: further ones of `apply_chat_template`."""
    given = [to_tool(tool) for tool in tools] or None

    def ids(messages: Sequence[Message], *, asked: bool) -> tuple[int, ...]:
        made = words.apply_chat_template(
            [to_template(message) for message in messages],
            tools=given,
            add_generation_prompt=asked,
            tokenize=True,
            return_dict=True,
            **options,
        )
        return tuple(made["input_ids"])

    before = ids(state, asked=True)
    found: list[tuple[int, ...] | None] = []
    for action in actions:
        whole = ids([*state, action], asked=False)
        same = whole[: len(before)] == before
        found.append(_to_the_end(whole[len(before) :], ends) if same else None)
    return before, found


def end_tokens(words: Any, model: Any) -> frozenset[int]:
    """The ids that end a turn: the tokenizer's, and those at which the model's generation stops."""
    said = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    own = getattr(words, "tokenizer", words).eos_token_id  # a processor holds a tokenizer
    return frozenset(one for one in (own, *(said if isinstance(said, list) else [said])) if one is not None)


def _to_the_end(action: tuple[int, ...], ends: Collection[int]) -> tuple[int, ...]:
    last = max((place for place, token in enumerate(action) if token in ends), default=len(action) - 1)
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
