"""Trains the policy on generated demonstrations before GRPO, until it solves a given share of unseen tasks."""

from __future__ import annotations

import functools
import logging
import random
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from torch.optim.lr_scheduler import LambdaLR
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from oven_learner.optim.float32_muon import Float32Muon
from oven_recipes.environments.repair_session import RepairSession, Tests
from oven_recipes.environments.repair_task_generator import generate_tasks
from oven_recipes.environments.sandboxed_tests import SandboxedTests
from oven_recipes.preparation import resumable_steps
from oven_recipes.repair.attempts import attempt_all, solved_share
from oven_recipes.repair.chat_format import ASSISTANT_HEADER, build_tokenizer, render
from oven_recipes.repair.demonstrations import Habits, demonstrate
from oven_recipes.repair.settings import RepairSettings
from oven_recipes.small_models import optimizer_step, similar_length_batches, small_llama
from oven_recipes.weights_cache import key_of, load_or_train

log = logging.getLogger(__name__)

RECIPE_VERSION = 2  # increase it when a code change would change the warm weights
RAMP_STEPS = 30  # number of steps over which the learning rate rises to its maximum
CONTEXT_WEIGHT = 0.2
"""Loss weight of tokens that the policy did not write. Predicting files teaches the policy to copy from them."""
POOLED_BATCHES = 16
"""Number of batches whose rows are drawn together and sorted by length."""
MUON_RATE_FACTOR = 4.0
"""Muon's learning rate as a multiple of Adam's."""
CONTEXT_LENGTH = 640
"""Context length of the policy in tokens. The longest attempt fits, with its problem statement and results."""
VOCABULARY_DEMONSTRATIONS = 400
"""Number of demonstrations that the tokenizer is trained on. They contain all words of the tasks."""
WARM_UP_SEED = "warm-up"
"""Seed of the tasks that measure the warm-up. Neither training nor evaluation uses them."""
WEIGHT_SETTINGS = (
    "function_kinds", "neighbour", "hidden", "layers", "heads", "ffn", "demonstrations",
    "correct_first_edit_share", "sft_batch", "sft_learning_rate", "sft_steps", "sft_eval_every", "sft_tasks",
    "warmup_target", "max_completion_length",
)  # fmt: skip
"""The settings that the warm weights depend on."""


def warm_policy(
    settings: RepairSettings, seed: int, cache: Path, tests: Tests | None = None
) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Return the warm policy for these settings and seed, and its tokenizer. The policy is loaded from the cache, or
    trained if the cache does not contain it."""
    weight_settings = {name: getattr(settings, name) for name in WEIGHT_SETTINGS}
    key = key_of({"version": RECIPE_VERSION, "seed": seed, **weight_settings})
    tokenizer = policy_tokenizer()
    model = load_or_train(
        cache / f"repair-warm-{key}",
        seed,
        lambda: build_model(settings, tokenizer),
        lambda model, unfinished: _train(model, tokenizer, settings, seed, tests or SandboxedTests(), unfinished),
    )
    return model, tokenizer


def build_model(settings: RepairSettings, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Return a freshly initialised policy."""
    return small_llama(settings, tokenizer, CONTEXT_LENGTH)


def policy_tokenizer() -> PreTrainedTokenizerFast:
    """Return the policy's tokenizer, which is the same in all runs. So one run's traces can train another's policy."""
    return build_tokenizer(_tokenizer_texts())


@functools.cache
def _tokenizer_texts() -> tuple[str, ...]:
    rng = random.Random("vocabulary")
    instances = generate_tasks("vocabulary", VOCABULARY_DEMONSTRATIONS, with_neighbour=True)
    return tuple(render(demonstrate(instance, Habits(), rng) for instance in instances))


def _train(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    settings: RepairSettings,
    seed: int,
    tests: Tests,
    unfinished: Path,
) -> None:
    """Train the policy until it solves the required share of unseen tasks, or until the maximum number of steps."""
    habits = Habits(correct_edit=settings.correct_first_edit_share)
    habit_rng = random.Random(f"demonstrations {seed}")
    instances = settings.generate_tasks(f"demonstrations {seed}", settings.demonstrations)
    texts = render(demonstrate(instance, habits, habit_rng) for instance in instances)
    examples = [(ids, answer_mask(ids, tokenizer)) for ids in tokenizer(texts)["input_ids"]]
    rng = random.Random(f"warm-up {seed}")
    pool_size = min(len(examples), POOLED_BATCHES * settings.sft_batch)
    batches = similar_length_batches(
        lambda: rng.sample(examples, pool_size), settings.sft_batch, lambda example: len(example[0]), rng
    )
    optimizers = _optimizers(model, settings.sft_learning_rate)

    def rate_factor(done: int) -> float:
        step = done + 1
        return min(1.0, step / RAMP_STEPS) * (1 - 0.9 * step / settings.sft_steps)

    schedules = [LambdaLR(optimizer, rate_factor) for optimizer in optimizers]
    model.train()
    trained = (model, *optimizers, *schedules)
    for done, batch in resumable_steps("warm-up", batches, settings.sft_steps, trained, unfinished):
        step = done + 1
        ids, mask, weights = collate(batch, tokenizer)
        logits = model(input_ids=ids, attention_mask=mask).logits  # (B, T, V)
        losses = cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none")  # (B * (T - 1),)
        loss_weights = weights[:, 1:].flatten()
        loss = (losses * loss_weights).sum() / loss_weights.sum()
        optimizer_step(loss, model.parameters(), *optimizers, *schedules)
        if step % settings.sft_eval_every == 0:
            solved = measure_solved(model, tokenizer, settings, tests)
            log.info("warm-up: step %d, loss %.3f, %.2f of unseen tasks solved", step, loss.item(), solved)
            if solved >= settings.warmup_target:
                return
    log.warning(
        "the warm-up stopped after its maximum of %d steps and solved less than %g of unseen tasks, so GRPO may find "
        "nothing to reinforce; allow more steps (sft_steps)", settings.sft_steps, settings.warmup_target,
    )  # fmt: skip


def _optimizers(model: LlamaForCausalLM, learning_rate: float) -> list[torch.optim.Optimizer]:
    """Return Muon for the layers' matrices, and Adam for the other parameters. Adam alone would need three times as
    many steps."""
    matrices = [parameter for name, parameter in model.named_parameters() if parameter.ndim == 2 and "layers" in name]
    matrix_ids = {id(matrix) for matrix in matrices}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in matrix_ids]
    # The second beta is lower than usual, because the warm-up has only a few hundred steps.
    adam = torch.optim.AdamW(rest, lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
    return [adam, Float32Muon(matrices, lr=MUON_RATE_FACTOR * learning_rate)]


Example = tuple[list[int], list[bool]]
"""Token ids, and whether the policy wrote each token."""


def measure_solved(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, settings: RepairSettings, tests: Tests
) -> float:
    """Return the share of unseen tasks that the policy solves at temperature 1. All measurements use the same tasks."""
    unseen_tasks = settings.generate_tasks(WARM_UP_SEED, settings.sft_tasks, evaluation=True)
    sessions = [RepairSession(instance, instance.files, tests) for instance in unseen_tasks]
    with torch.random.fork_rng(devices=[]):
        attempt_all(model, tokenizer, sessions, settings.max_completion_length)
    return solved_share(sessions)


def answer_mask(ids: Sequence[int], tokenizer: PreTrainedTokenizerFast) -> list[bool]:
    """Return for each token of a conversation whether it belongs to an answer of the policy or to the answer's end."""
    header = tokenizer(ASSISTANT_HEADER)["input_ids"]
    mask = []
    in_answer = False
    for index, token in enumerate(ids):
        in_answer = in_answer or list(ids[index - len(header) : index]) == header
        mask.append(in_answer)
        in_answer = in_answer and token != tokenizer.eos_token_id
    return mask


def collate(rows: Sequence[Example], tokenizer: PreTrainedTokenizerFast) -> tuple[Tensor, Tensor, Tensor]:
    """Return token ids, attention mask and loss weights, each (B, T), padded on the right."""
    sequences = [torch.tensor(ids) for ids, _ in rows]
    weights = [torch.tensor([1.0 if is_written else CONTEXT_WEIGHT for is_written in written]) for _, written in rows]
    ids = pad_sequence(sequences, batch_first=True, padding_value=tokenizer.pad_token_id)
    mask = pad_sequence([torch.ones_like(sequence) for sequence in sequences], batch_first=True)
    return ids, mask, pad_sequence(weights, batch_first=True)
