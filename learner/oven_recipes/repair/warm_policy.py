"""Trains the policy on generated demonstrations before GRPO, until it solves a given share of unseen tasks."""

from __future__ import annotations

import difflib
import functools
import json
import logging
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from torch.optim.lr_scheduler import LambdaLR
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from oven_learner.optim.float32_muon import Float32Muon
from oven_recipes.environments.repair_instance import Instance
from oven_recipes.environments.repair_session import RepairSession, Tests
from oven_recipes.environments.repair_task_generator import OPERATOR_SWAPS, TrustedTests, generate_tasks
from oven_recipes.environments.sandboxed_tests import SandboxedTests
from oven_recipes.preparation import continued_steps
from oven_recipes.repair.attempts import attempt_all, solved_share
from oven_recipes.repair.chat_format import ASSISTANT_HEADER, build_tokenizer, render
from oven_recipes.repair.settings import RepairSettings
from oven_recipes.small_models import optimizer_step, similar_length_batches, small_llama
from oven_recipes.weights_cache import key_of, load_or_train

Message = dict[str, Any]
"""A message in the format of chat templates."""
MAX_DRAWS: Final = 20
"""Maximum number of draws for a wrong edit. After that, the correct edit is used."""


@dataclass(frozen=True)
class Habits:
    """Probabilities of actions in demonstrations."""

    correct_edit: float = 0.5
    """Probability that the first edit is correct. Otherwise the new code is wrong."""
    look_around: float = 0.1
    """Probability of listing files or searching for the function's name before reading the file."""
    run_tests: float = 0.8
    """Probability of running the tests after the first edit."""
    retry: float = 0.5
    """Probability of correcting the edit after failing tests. Otherwise the wrong edit is submitted."""


def demonstration(instance: Instance, habits: Habits, rng: random.Random) -> list[Message]:
    """Return the messages of one attempt at the instance, from the problem statement to the end."""
    solution = instance.solution
    attempt = _Attempt(RepairSession(instance, instance.files, TrustedTests()), instance.problem_statement)
    path, _, description = instance.problem_statement.partition(": ")
    if rng.random() < habits.look_around:
        if rng.random() < 0.5:
            attempt.call("list_files", {"folder": "."})
        else:
            attempt.call("search", {"text": description.partition("(")[0]})
    attempt.call("read", {"path": path})
    old, new = replacement(attempt.files[path], solution[path])
    is_wrong = rng.random() >= habits.correct_edit
    attempt.call("edit", {"path": path, "old": old, "new": _wrong_edit(new, old, rng) if is_wrong else new})
    if rng.random() < habits.run_tests:
        attempt.call("run_tests", {})
        if not attempt.all_tests_pass and rng.random() < habits.retry:
            old, new = replacement(attempt.files[path], solution[path])
            attempt.call("edit", {"path": path, "old": old, "new": new})
            attempt.call("run_tests", {})
    attempt.call("submit", {})
    attempt.messages.append({"role": "assistant", "content": "done"})
    return attempt.messages


class _Attempt:
    """An attempt at a task: its session, and the messages so far."""

    def __init__(self, session: RepairSession, prompt: str) -> None:
        self._session = session
        self.messages: list[Message] = [{"role": "user", "content": prompt}]

    @property
    def files(self) -> Mapping[str, str]:
        return self._session.files

    @property
    def all_tests_pass(self) -> bool:
        return self._session.passing_count == len(self._session.outcomes)

    def call(self, tool: str, arguments: dict[str, str]) -> None:
        function = {"name": tool, "arguments": json.dumps(arguments)}
        calls = [{"type": "function", "function": function}]
        result = self._session.call(tool, arguments)
        self.messages += [
            {"role": "assistant", "content": "", "tool_calls": calls},
            {"role": "tool", "name": tool, "content": result.text},
        ]


def replacement(current: str, solution: str) -> tuple[str, str]:
    """Return the arguments `old` and `new` with which the tool `edit` changes `current` to `solution`. They are the
    shortest range of whole lines for which `old` occurs once, without the indent of the first line."""
    before, after = current.splitlines(keepends=True), solution.splitlines(keepends=True)
    opcodes = difflib.SequenceMatcher(a=before, b=after, autojunk=False).get_opcodes()
    changes = [opcode for opcode in opcodes if opcode[0] != "equal"]
    _, old_start, _, new_start, _ = changes[0]
    _, _, old_stop, _, new_stop = changes[-1]
    if old_start == old_stop or new_start == new_stop:  # the edit only inserts or deletes, so include the next line
        old_stop, new_stop = old_stop + 1, new_stop + 1
    while True:
        old = "".join(before[old_start:old_stop]).rstrip("\n")
        new = "".join(after[new_start:new_stop]).rstrip("\n")
        indent = len(old) - len(old.lstrip())
        if current.count(old[indent:]) == 1:
            return old[indent:], new[indent:]
        old_start, new_start = old_start - 1, new_start - 1


def _wrong_edit(new: str, old: str, rng: random.Random) -> str:
    """Return code close to the correct code `new` that differs from it and from the current code `old`."""
    for _ in range(MAX_DRAWS):
        wrong = _mutate(new, rng)
        if wrong not in (new, old):
            return wrong
    return new


def _mutate(text: str, rng: random.Random) -> str:
    """Return `text` with one digit or one operator changed, or unchanged if it has none."""
    digits = list(re.finditer(r"\d", text))
    if digits and rng.random() < 0.5:
        match = rng.choice(digits)
        digit = str(min(9, max(0, int(match[0]) + rng.choice((-1, 1)))))
        return text[: match.start()] + digit + text[match.end() :]
    swaps = [(old, new) for old, new in OPERATOR_SWAPS if old in text]
    if not swaps:
        return text
    old, new = rng.choice(swaps)
    return text.replace(old, new, 1)


log = logging.getLogger(__name__)

RECIPE_VERSION = 2  # increase it when a code change would change the warm weights
RAMP_STEPS = 30  # number of steps in which the learning rate rises to its maximum
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
    tokenizer = vocabulary()
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


def vocabulary() -> PreTrainedTokenizerFast:
    """Return the tokenizer. It is the same in all runs, so that traces of one run can train the policy of another."""
    return build_tokenizer(_vocabulary_texts())


@functools.cache
def _vocabulary_texts() -> tuple[str, ...]:
    rng = random.Random("vocabulary")
    instances = generate_tasks("vocabulary", VOCABULARY_DEMONSTRATIONS, with_neighbour=True)
    return tuple(render(demonstration(instance, Habits(), rng) for instance in instances))


def _train(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    settings: RepairSettings,
    seed: int,
    tests: Tests,
    unfinished: Path,
) -> None:
    """Train the policy until it solves the required share of unseen tasks."""
    habits = Habits(correct_edit=settings.correct_first_edit_share)
    habit_rng = random.Random(f"demonstrations {seed}")
    instances = settings.generate_tasks(f"demonstrations {seed}", settings.demonstrations)
    texts = render(demonstration(instance, habits, habit_rng) for instance in instances)
    examples = [(ids, answer_mask(ids, tokenizer)) for ids in tokenizer(texts)["input_ids"]]
    rng = random.Random(f"warm-up {seed}")
    pool = min(len(examples), POOLED_BATCHES * settings.sft_batch)
    batches = similar_length_batches(
        lambda: rng.sample(examples, pool), settings.sft_batch, lambda example: len(example[0]), rng
    )
    optimizers = _optimizers(model, settings.sft_learning_rate)

    def rate_factor(done: int) -> float:
        step = done + 1
        return min(1.0, step / RAMP_STEPS) * (1 - 0.9 * step / settings.sft_steps)

    schedules = [LambdaLR(optimizer, rate_factor) for optimizer in optimizers]
    model.train()
    trained = (model, *optimizers, *schedules)
    for done, batch in continued_steps("warm-up", batches, settings.sft_steps, trained, unfinished):
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
    """Return Muon for the layers' matrices and Adam for the rest. Adam alone would need three times as many steps."""
    matrices = [parameter for name, parameter in model.named_parameters() if parameter.ndim == 2 and "layers" in name]
    matrix_ids = {id(matrix) for matrix in matrices}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in matrix_ids]
    # The second beta is lower than usual, because the training has only a few hundred steps.
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
    """Return whether each token of a conversation belongs to an answer of the policy or ends it."""
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
    mask = pad_sequence([torch.ones_like(sequence) for sequence in sequences], True)
    return pad_sequence(sequences, True, tokenizer.pad_token_id), mask, pad_sequence(weights, True)
