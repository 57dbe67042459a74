"""Rows of an oracle's training: a question, whose activations it is asked of, and what its rewards need to know."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from oven_recipes.activations.capture import capture
from oven_recipes.activations.grpo_trainer import COLUMN
from oven_recipes.activations.placeholders import oracle_prompt
from oven_recipes.activations.store import ActivationStore, activation_key
from oven_recipes.oracle.questions import QuestionedPrompt


def captured(
    model: Any,
    tokenizer: Any,
    name: str,
    texts: Sequence[str],
    layers: Sequence[int],
    most: int,
    store: ActivationStore,
) -> None:
    """Puts into `store` what it lacks of the activations of `texts`, of 1 to `most` late tokens as each text's digest
    says, so that every run of a model has the same. `name` is the model's in the keys."""
    missing = [t for t in dict.fromkeys(texts) if any(activation_key(name, t, layer) not in store for layer in layers)]
    if missing:
        counts = [random.Random(f"tokens {text}").randint(1, most) for text in missing]
        store.add(name, capture(model, tokenizer, missing, layers, counts))


def training_rows(
    tokenizer: Any,
    name: str,
    prompts: Sequence[QuestionedPrompt],
    layers: Sequence[int],
    store: ActivationStore,
    seed: int,
) -> list[dict[str, Any]]:
    """A row per question: the oracle's `prompt`, its activation's key, the `text` and `question` that judges are
    shown, and `says_what` and `right`, the known answers; both are empty where none is known. Each question is asked
    of one layer, drawn by the seed."""
    rng = random.Random(f"layers {seed}")
    rows = []
    for prompt in prompts:
        for question in prompt.questions:
            layer = rng.choice(layers)
            key = activation_key(name, prompt.prompt, layer)
            known = question.answer
            rows.append({
                "prompt": oracle_prompt(layer, len(store.get(key)), question.text, tokenizer),
                COLUMN: key,
                "text": prompt.prompt,
                "question": question.text,
                "says_what": list(known.says_what) if known else [],
                "right": list(known.right) if known else [],
            })  # fmt: skip
    return rows
