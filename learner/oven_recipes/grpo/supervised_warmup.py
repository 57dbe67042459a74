"""The supervised warm-up that stands in for pre-training, cached on disk so that a second run starts at once."""

import random
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from oven_recipes.grpo.model import build_model
from oven_recipes.grpo.task import habit_pairs
from oven_recipes.small_models import descend, rise_and_fall, target_batch
from oven_recipes.sorting_settings import SortingSettings
from oven_recipes.weights_cache import key_of, trained_once

RECIPE_VERSION = 1  # raise it when the warm-up's code changes what it produces


def cache_key(settings: SortingSettings, seed: int) -> str:
    """Return 16 hex digits over everything that decides the warm weights, and nothing else."""
    fields = ("lengths", "hidden", "layers", "heads", "ffn", "sft_steps", "sft_batch", "sft_learning_rate")
    decides = {name: getattr(settings, name) for name in (*fields, "right_habit")}
    return key_of({"version": RECIPE_VERSION, "seed": seed, **decides})


def warm_policy(
    settings: SortingSettings, tokenizer: PreTrainedTokenizerFast, seed: int, cache: Path
) -> LlamaForCausalLM:
    """Return the warm policy for these settings and seed, from the cache or trained now."""
    folder = cache / f"grpo-warm-{cache_key(settings, seed)}"
    return trained_once(
        folder, seed, lambda: build_model(settings, tokenizer), lambda model: _train(model, settings, tokenizer, seed)
    )


def _train(model: LlamaForCausalLM, settings: SortingSettings, tokenizer: PreTrainedTokenizerFast, seed: int) -> None:
    pairs = habit_pairs(settings.lengths, settings.right_habit, random.Random(f"warm-up {seed}"))
    # A short memory of the squared gradient: in a few hundred steps, .999 still remembers the initial weights.
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.sft_learning_rate, betas=(0.9, 0.95), weight_decay=0.0
    )
    schedule = rise_and_fall(optimizer, settings.sft_steps)
    model.train()
    for _ in range(settings.sft_steps):
        ids, mask, labels = collate(list(islice(pairs, settings.sft_batch)), tokenizer)
        logits = model(input_ids=ids, attention_mask=mask).logits  # (B, T, V)
        loss = cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        descend(loss, model.parameters(), optimizer, schedule)


def collate(pairs: list[tuple[str, str]], tokenizer: PreTrainedTokenizerFast) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids, mask and labels of prompts and targets, padded on the left."""
    prompts = tokenizer([prompt for prompt, _ in pairs])["input_ids"]
    targets = [[*ids, tokenizer.eos_token_id] for ids in tokenizer([target for _, target in pairs])["input_ids"]]
    return target_batch(prompts, targets, tokenizer.pad_token_id, "left")
