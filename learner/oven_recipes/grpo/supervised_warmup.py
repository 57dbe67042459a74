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
from oven_recipes.sorting_settings import SortingSettings
from oven_recipes.weights_cache import key_of, load_weights, store_weights

RECIPE_VERSION = 1  # raise it when the warm-up's code changes what it produces
RAMP = 20  # steps over which the learning rate rises
IGNORED = -100  # cross_entropy's default ignore_index


def cache_key(settings: SortingSettings, seed: int) -> str:
    """Return 16 hex digits over everything that decides the warm weights, and nothing else."""
    fields = ("lengths", "hidden", "layers", "heads", "ffn", "sft_steps", "sft_batch", "sft_learning_rate")
    decides = {name: getattr(settings, name) for name in (*fields, "right_habit")}
    return key_of({"version": RECIPE_VERSION, "seed": seed, **decides})


def warm_policy(
    settings: SortingSettings, tokenizer: PreTrainedTokenizerFast, seed: int, cache: Path
) -> LlamaForCausalLM:
    """Return the warm policy for these settings and seed, from the cache or trained now. torch's global generator is
    restored, so that a run does not depend on the cache."""
    folder = cache / f"grpo-warm-{cache_key(settings, seed)}"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build_model(settings, tokenizer)
        if (weights := load_weights(folder)) is not None:
            model.load_state_dict(weights)
        else:
            _train(model, settings, tokenizer, seed)
            store_weights(model.state_dict(), folder)
    return model


def _train(model: LlamaForCausalLM, settings: SortingSettings, tokenizer: PreTrainedTokenizerFast, seed: int) -> None:
    pairs = habit_pairs(settings.lengths, settings.right_habit, random.Random(f"warm-up {seed}"))
    # A short memory of the squared gradient: in a few hundred steps, .999 still remembers the initial weights.
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.sft_learning_rate, betas=(0.9, 0.95), weight_decay=0.0
    )
    steps = settings.sft_steps
    scale = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda t: min(1.0, (t + 1) / RAMP) * (1 - 0.95 * t / max(1, steps))
    )
    model.train()
    for _ in range(steps):
        ids, mask, labels = collate(list(islice(pairs, settings.sft_batch)), tokenizer)
        logits = model(input_ids=ids, attention_mask=mask).logits  # (B, T, V)
        loss = cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scale.step()


def collate(pairs: list[tuple[str, str]], tokenizer: PreTrainedTokenizerFast) -> tuple[Tensor, Tensor, Tensor]:
    """Return token ids, attention mask and labels, each (B, T) int64, padded on the left. Only the target is scored."""
    prompts = tokenizer([prompt for prompt, _ in pairs])["input_ids"]
    targets = [[*ids, tokenizer.eos_token_id] for ids in tokenizer([target for _, target in pairs])["input_ids"]]
    width = max(len(p) + len(t) for p, t in zip(prompts, targets, strict=True))
    ids = torch.full((len(pairs), width), tokenizer.pad_token_id)
    labels = torch.full((len(pairs), width), IGNORED)
    mask = torch.zeros(len(pairs), width, dtype=torch.int64)
    for row, (prompt, target) in enumerate(zip(prompts, targets, strict=True)):
        ids[row, width - len(prompt) - len(target) :] = torch.tensor(prompt + target)
        mask[row, width - len(prompt) - len(target) :] = 1
        labels[row, width - len(target) :] = torch.tensor(target)
    return ids, mask, labels
