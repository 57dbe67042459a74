"""Generates an oracle's answers in batches, with activations injected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import GenerationConfig

from oven_core.errors import ConfigError
from oven_learner.losses.completion_logits import pad_rows
from oven_recipes.activations.capture import Activation
from oven_recipes.activations.injection import ActivationInjection
from oven_recipes.activations.model_blocks import unwrap_model
from oven_recipes.activations.placeholders import oracle_prompt

BATCH_ROWS = 128
"""Default number of prompts per batch. On a CPU, the small model is fastest with 64 to 256."""


def context_length(model: Any) -> int | None:
    """Return the model's maximum number of tokens, or None if its configuration does not specify it."""
    return getattr(unwrap_model(model).config.get_text_config(), "max_position_embeddings", None)


@torch.no_grad()
def generate_answers(
    model: Any,
    tokenizer: Any,
    injection: ActivationInjection,
    activations: Sequence[Activation],
    questions: Sequence[str],
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    seed: int = 0,
    rows: int = BATCH_ROWS,
    report: Callable[[int], object] = lambda done: None,
) -> list[str]:
    """Return the oracle's output for each activation and its question, without special tokens. With `temperature` 0,
    decoding is greedy. Otherwise answers are sampled with `seed`. `report` is called with the number of finished
    answers. The model's mode and the random generators are restored. Raises ConfigError if a prompt and its answer
    exceed the model's context."""
    prompts = [
        oracle_prompt(activation.layer, len(activation.vectors), question, tokenizer)
        for activation, question in zip(activations, questions, strict=True)
    ]
    ids: list[list[int]] = tokenizer(prompts)["input_ids"] if prompts else []
    _check_lengths(model, ids, questions, max_new_tokens)
    by_length = sorted(range(len(ids)), key=lambda number: len(ids[number]))  # similar lengths need little padding
    answers = [""] * len(ids)
    config = _generation_config(tokenizer, max_new_tokens, temperature)
    device = unwrap_model(model).device
    was_training = model.training
    model.eval()
    devices = [device] if device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(seed)
            for start in range(0, len(by_length), rows):
                report(start)
                numbers = by_length[start : start + rows]
                batch, mask = pad_rows([ids[number] for number in numbers], device, pad_left=True)  # (batch, prompt)
                layers = [activations[number].layer for number in numbers]
                vectors = [activations[number].vectors for number in numbers]
                with injection.vectors(vectors, layers):
                    output = model.generate(input_ids=batch, attention_mask=mask, generation_config=config)
                texts = tokenizer.batch_decode(output[:, batch.shape[1] :], skip_special_tokens=True)
                for number, answer in zip(numbers, texts, strict=True):
                    answers[number] = answer
    finally:
        model.train(was_training)
    return answers


def _generation_config(tokenizer: Any, max_new_tokens: int, temperature: float) -> GenerationConfig:
    """Return a config to use instead of the model's, which may truncate the distribution or penalise repetition."""
    sampling: dict[str, Any] = {"do_sample": False}
    if temperature > 0:
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0}
    return GenerationConfig(  # type: ignore[no-untyped-call]
        max_new_tokens=max_new_tokens,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        **sampling,
    )


def _check_lengths(model: Any, ids: Sequence[Sequence[int]], questions: Sequence[str], max_new_tokens: int) -> None:
    context = context_length(model)
    for token_ids, question in zip(ids, questions, strict=True):
        if context is not None and len(token_ids) + max_new_tokens > context:
            raise ConfigError(
                f"the prompt of question {question[:60]!r} has {len(token_ids)} tokens, which with an answer of "
                f"{max_new_tokens} exceeds the model's {context} positions; ask a shorter question"
            )
