"""Log-probabilities that a saved policy gives actions at states of traces, by its own chat template."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from oven_core.errors import ConfigError, reason
from oven_learner.losses.pair_tokens import end_tokens, rendered
from oven_recipes.quiet_libraries import quiet_libraries
from oven_runs.traces.records import Message, Tool

ScoringRequest = tuple[Sequence[Message], Sequence[Tool], Sequence[Message]]
"""A state, its tools, and the actions to score there."""


def action_scores(policy: Path, states: Iterable[ScoringRequest]) -> Iterator[tuple[float | None, ...]]:
    """Return log π(action | state) in nats for each action of each state, summed over its tokens up to the end of the
    turn.

    The value is None for a state that exceeds the policy's window, or that its template renders differently when an
    action follows. `policy`: a folder with a model and a tokenizer that has a chat template. Raises ConfigError for any
    other policy.
    """
    quiet_libraries()
    model, words = _loaded(policy)
    window = getattr(model.config, "max_position_embeddings", None)
    ends = end_tokens(words, model)
    for state, tools, actions in states:
        before, after = rendered(words, state, tools, actions, ends)
        yield tuple(
            _log_prob(model, before, ids) if ids and (window is None or len(before) + len(ids) <= window) else None
            for ids in after
        )


def _loaded(policy: Path) -> tuple[Any, Any]:
    if not (policy / "config.json").is_file():
        raise ConfigError(f"{policy} has no model; name a folder with config.json, weights and a tokenizer")
    try:
        words: Any = AutoTokenizer.from_pretrained(policy, local_files_only=True)
        model: Any = AutoModelForCausalLM.from_pretrained(policy, local_files_only=True)
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(f"the model in {policy} cannot be loaded: {reason(error)}") from error
    if words.chat_template is None:
        raise ConfigError(f"the tokenizer in {policy} has no chat template, by which states are rendered; give it one")
    return (model.cuda() if torch.cuda.is_available() else model).eval(), words


@torch.inference_mode()
def _log_prob(model: Any, before: Sequence[int], ids: Sequence[int]) -> float:
    tokens = torch.tensor([[*before, *ids]], device=model.device)  # [1, P + C]
    logits = model(input_ids=tokens, use_cache=False).logits[0, len(before) - 1 : -1].float()  # [C, V]
    own = torch.log_softmax(logits, -1).gather(1, tokens[0, len(before) :, None])  # [C, 1]
    return float(own.double().sum())
