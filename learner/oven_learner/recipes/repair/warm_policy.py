"""The supervised warm-up: a policy learns from demonstrations until it solves a share of unseen tasks."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from oven_learner.environments.sandboxed_tests import SandboxedTests
from oven_learner.environments.session import RepairSession, Tests
from oven_learner.environments.small_functions import tasks
from oven_learner.recipes.repair.attempts import attempt_all, share_solved
from oven_learner.recipes.repair.chat_format import ASSISTANT, build_tokenizer, render
from oven_learner.recipes.repair.demonstrations import Habits, demonstration
from oven_learner.recipes.repair.settings import RepairSettings
from oven_learner.recipes.weights_cache import key_of, load_weights, store_weights

log = logging.getLogger(__name__)

RECIPE_VERSION = 1  # raise it when the warm-up's code changes what it produces
RAMP = 30  # steps over which the learning rate rises
IGNORED = -100  # cross_entropy's default ignore_index
POSITIONS = 640
"""Tokens of a context that the policy's weights are for: the statement, and the longest attempt with its results."""
MEASURED = 64
"""Unseen tasks that a measurement of the warm-up tries: a share of .4 has a standard error of .06."""
WORDED = 1000
"""Demonstrations that the vocabulary is taken from: all words of the tasks are in them."""
WARM_UP = "warm-up"
"""The seed of the tasks that it measures on: neither training's nor those of evaluations."""
DECIDES = (
    "shapes", "hidden", "layers", "heads", "ffn", "demonstrations", "right_habit", "sft_batch", "sft_learning_rate",
    "sft_steps", "sft_round", "solved_from", "max_completion_length",
)  # fmt: skip
"""The settings that decide the warm weights."""


def warm_policy(
    settings: RepairSettings, seed: int, cache: Path, tests: Tests | None = None
) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """The warm policy for these settings and seed, and its tokenizer: from the cache where it is there and sound, else
    trained now. Torch's global generator is left as it was."""
    key = key_of({"version": RECIPE_VERSION, "seed": seed, **{name: getattr(settings, name) for name in DECIDES}})
    tokenizer = vocabulary()
    folder = cache / f"repair-warm-{key}"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build_model(settings, tokenizer)
        if (weights := load_weights(folder)) is not None:
            model.load_state_dict(weights)
        else:
            _train(model, tokenizer, settings, seed, tests or SandboxedTests())
            # Copies: the head shares its memory with the embedding, which a file cannot say.
            store_weights({name: weight.clone() for name, weight in model.state_dict().items()}, folder)
    return model, tokenizer


def build_model(settings: RepairSettings, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A freshly initialised policy in float32; torch's global generator decides its weights."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=settings.hidden,
            intermediate_size=settings.ffn,
            num_hidden_layers=settings.layers,
            num_attention_heads=settings.heads,
            num_key_value_heads=settings.heads,
            max_position_embeddings=POSITIONS,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def vocabulary() -> PreTrainedTokenizerFast:
    """The tokenizer, the same for every run: pairs of one run's traces can be trained on in another."""
    return build_tokenizer(_demonstrated("vocabulary", WORDED, Habits(), ()))


def _demonstrated(seed: int | str, count: int, habits: Habits, shapes: Sequence[str]) -> list[str]:
    rng = random.Random(f"demonstrations {seed}")
    shown = tasks(f"demonstrations {seed}", count, shapes=shapes)
    return render(demonstration(one, habits, rng) for one in shown)


def _train(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    settings: RepairSettings,
    seed: int,
    tests: Tests,
) -> None:
    habits = Habits(right=settings.right_habit)
    texts = _demonstrated(seed, settings.demonstrations, habits, settings.shapes)
    examples = [(ids, answers(ids, tokenizer)) for ids in tokenizer(texts)["input_ids"]]
    rng = random.Random(f"warm-up {seed}")
    # A short memory of the squared gradient: in a few hundred steps, .999 still remembers the initial weights.
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.sft_learning_rate, betas=(0.9, 0.95), weight_decay=0.01
    )
    model.train()
    for step in range(1, settings.sft_steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = settings.sft_learning_rate * min(1.0, step / RAMP)
        ids, mask, labels = collate(rng.sample(examples, min(settings.sft_batch, len(examples))), tokenizer)
        logits = model(input_ids=ids, attention_mask=mask).logits  # (B, T, V)
        loss = cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % settings.sft_round == 0:
            solved = measured(model, tokenizer, settings, tests)
            log.info("warm-up: step %d, loss %.3f, %.2f of unseen tasks solved", step, loss.item(), solved)
            if solved >= settings.solved_from:
                return
    log.warning(
        "the warm-up ended at its longest, %d steps, below %g of unseen tasks solved: GRPO may find nothing to "
        "reinforce; allow more steps (sft_steps)", settings.sft_steps, settings.solved_from,
    )  # fmt: skip


def measured(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, settings: RepairSettings, tests: Tests
) -> float:
    """The share of unseen tasks that the policy solves at temperature 1, on the same tasks each time."""
    unseen = tasks(WARM_UP, MEASURED, evaluation=True, shapes=settings.shapes)
    sessions = [RepairSession(one, one.files, tests) for one in unseen]
    with torch.random.fork_rng(devices=[]):
        attempt_all(model, tokenizer, sessions, settings.max_completion_length)
    return share_solved(sessions)


def answers(ids: Sequence[int], tokenizer: PreTrainedTokenizerFast) -> list[bool]:
    """Which tokens of a conversation the policy wrote: each answer, with its end-of-turn token."""
    head = tokenizer(ASSISTANT)["input_ids"]
    found = [False] * len(ids)
    inside = False
    for at, token in enumerate(ids):
        inside = inside or list(ids[at - len(head) : at]) == head
        found[at] = inside
        inside = inside and token != tokenizer.eos_token_id
    return found


def collate(
    rows: Sequence[tuple[list[int], list[bool]]], tokenizer: PreTrainedTokenizerFast
) -> tuple[Tensor, Tensor, Tensor]:
    """Token ids, attention mask and labels, each (B, T) int64, padded on the right; only answers are scored."""
    width = max(len(ids) for ids, _ in rows)
    ids = torch.full((len(rows), width), tokenizer.pad_token_id)
    labels = torch.full((len(rows), width), IGNORED)
    mask = torch.zeros(len(rows), width, dtype=torch.int64)
    for at, (row, scored) in enumerate(rows):
        ids[at, : len(row)] = torch.tensor(row)
        mask[at, : len(row)] = 1
        labels[at, : len(row)] = torch.tensor(
            [one if wanted else IGNORED for one, wanted in zip(row, scored, strict=True)]
        )
    return ids, mask, labels
