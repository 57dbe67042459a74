"""A trainer's held-out score at the end of training: its mean loss over held-out rows, or its mean greedy reward.

Measuring changes nothing: afterwards the trainer, its callbacks, its reward functions and the random generators are as
before.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import fmean
from typing import Any, Protocol

import torch
from torch.utils.data import IterableDataset, Subset
from transformers import DefaultFlowCallback, PrinterCallback, ProgressCallback
from transformers.trainer_callback import CallbackHandler, ExportableState

from oven_learner import random_state
from oven_learner.hf.plain_values import PlainValues, copied
from oven_learner.hf.step_metrics import EVAL

MOST = 64
"""Rows that are read."""
DATASETS = ("train_dataset", "eval_dataset")
SHOWING = ("transformers.integrations", "transformers.utils.notebook")
"""Modules of callbacks that only report."""


class HeldOutExamples(Protocol):
    """A score of each held-out row, always of the same rows."""

    def problem(self) -> str:
        """Why the rows cannot be scored, with the remedy; empty if they can."""

    def measure(self) -> list[float]:
        """One score per row. The caller puts the model into evaluation mode and restores what this changes."""


class HeldOutScore:
    """The mean score of a trainer's held-out rows. Made when training begins."""

    def __init__(self, trainer: Any, examples: HeldOutExamples) -> None:
        self._trainer, self._examples = trainer, examples
        callbacks = trainer.callback_handler.callbacks
        rewards = getattr(trainer, "reward_funcs", ())
        self._values = [
            PlainValues(trainer, leave=DATASETS),
            *(PlainValues(callback) for callback in callbacks if _is_part_of_training(callback)),
            *(_counters(reward) for reward in rewards if _is_object(reward)),
        ]

    @classmethod
    def of(cls, trainer: Any, metric: str) -> HeldOutScore | None:
        """Return the score that `metric` is the mean of; None where this trainer has none or it cannot be measured."""
        rows = trainer.eval_dataset
        if rows is None or getattr(trainer, "use_vllm", False):  # vLLM's random generator cannot be restored
            return None
        prefix = EVAL
        if isinstance(rows, dict):
            name, rows = next(iter(rows.items()))
            prefix = f"{EVAL}{name}_"
        rewarded = hasattr(trainer, "reward_funcs")
        if metric != f"{prefix}{'reward' if rewarded else 'loss'}":
            return None
        examples = GreedyRewards(trainer, rows) if rewarded else RowLosses(trainer, rows)
        return None if examples.problem() else cls(trainer, examples)

    def read(self) -> float:
        """Measure now."""
        model = self._trainer.model
        before = [(values, values.take()) for values in self._values]
        try:
            with random_state.undisturbed(model), torch.no_grad():
                model.eval()
                return fmean(self._examples.measure())
        finally:
            for values, state in before:
                values.restore(state)


class RowLosses:
    """The trainer's loss of each row by itself, so that no row's depends on the others in its batch. Rows are collated
    once: a collator that masks at random masks the same each time."""

    def __init__(self, trainer: Any, rows: Any) -> None:
        self._trainer, self._rows = trainer, rows
        self._batches: list[Any] | None = None

    def problem(self) -> str:
        return ""

    def measure(self) -> list[float]:
        if self._batches is None:
            self._batches = self._collated()
        trainer, losses = self._trainer, []
        for batch in self._batches:
            loss, _, _ = trainer.prediction_step(trainer.model, copied(batch), prediction_loss_only=True)
            losses.append(loss)
        if any(loss is None for loss in losses):
            raise ValueError("the model gives no loss for a row: have the rows hold labels, or give an evaluate=")
        return [float(loss) for loss in torch.stack([loss.detach().float().mean() for loss in losses]).cpu()]

    def _collated(self) -> list[Any]:
        trainer, rows = self._trainer, _first(self._rows)
        persistent, trainer.args.dataloader_persistent_workers = trainer.args.dataloader_persistent_workers, False
        try:
            loader = trainer.get_eval_dataloader(rows)  # it knows the collator and the columns that the model takes
        finally:
            trainer.args.dataloader_persistent_workers = persistent
        prepared = getattr(trainer.accelerator, "_dataloaders", [])  # it saves their state with its own
        prepared[:] = [one for one in prepared if one is not loader]
        taken = itertools.islice(iter(loader.dataset), MOST)
        return [loader.collate_fn([row]) for row in taken]


class GreedyRewards:
    """The trainer's own reward of one greedy completion of each held-out prompt, weighted as when training began:
    weights that a change sets would move the reading by themselves."""

    def __init__(self, trainer: Any, rows: Any) -> None:
        self._trainer = trainer
        self._rows = [dict(row) for row in itertools.islice(iter(_first(rows)), MOST)]
        weights = getattr(trainer, "reward_weights", None)
        self._weights = weights.detach().clone() if weights is not None else torch.ones(len(trainer.reward_funcs))

    def measure(self) -> list[float]:
        size = max(1, self._trainer.args.per_device_eval_batch_size)
        chunks = [self._rows[at : at + size] for at in range(0, len(self._rows), size)]
        return [reward for chunk in chunks for reward in self._rewards(chunk)]

    def problem(self) -> str:
        trainer = self._trainer
        if not (hasattr(trainer, "_generate") and hasattr(trainer, "_calculate_rewards")):
            return f"{type(trainer).__name__} rewards in a way that is not known: give evaluate="
        for name in ("tools", "rollout_func", "environment_factories"):
            if getattr(trainer, name, None):
                return f"{name} answer prompts otherwise each time: give an evaluate= that returns a list"
        if not self._rows or any({"image", "images"} & row.keys() for row in self._rows):
            return "no held-out prompts of text alone: give an evaluate= that returns a list"
        return ""

    def _rewards(self, rows: list[dict[str, Any]]) -> list[float]:
        trainer, rows = self._trainer, copied(rows)
        prompts = [row["prompt"] for row in rows]
        with _greedy(trainer):
            # (prompts' ids, completions' ids, …, completions, …): RLOO returns three, GRPO eight
            said = trainer._generate(prompts)
        ids, completions = said[1], said[3 if len(said) > 3 else 2]
        scores = trainer._calculate_rewards(rows, prompts, completions, ids)  # [ranks × rows, functions]
        own = scores[trainer.accelerator.process_index * len(rows) :][: len(rows)]
        weighed = (own * self._weights.to(own.device)).nansum(1)
        unscored = own.isnan().all(1)  # no function has scored it, which is not a reward of 0
        return [float(one) for one in weighed.masked_fill(unscored, math.nan).cpu()]


def _first(rows: Any) -> Any:
    """At most so many, without reading the others."""
    if isinstance(rows, IterableDataset) or not hasattr(rows, "__len__"):
        return rows
    count = range(min(MOST, len(rows)))
    return rows.select(count) if hasattr(rows, "select") else Subset(rows, count)


@contextmanager
def _greedy(trainer: Any) -> Iterator[None]:
    sampling = trainer.generation_config
    trainer.generation_config = copy.deepcopy(sampling)
    trainer.generation_config.do_sample = False
    try:
        yield
    finally:
        trainer.generation_config = sampling


def _is_object(reward: Any) -> bool:
    """Whether a reward function may keep state: neither a plain function nor a model."""
    return hasattr(reward, "__dict__") and not isinstance(reward, torch.nn.Module) and not inspect.isroutine(reward)


def _counters(reward: Any) -> PlainValues:
    """A committee's count of batches, which its random draws depend on. What it publishes and pays stays."""
    return PlainValues(reward, containers=not type(reward).__module__.startswith("oven_learner."))


def _is_part_of_training(callback: Any) -> bool:
    """Whether a callback's state is part of the training, rather than what it shows or publishes."""
    if isinstance(callback, ExportableState):
        return True
    shows = isinstance(callback, DefaultFlowCallback | PrinterCallback | ProgressCallback | CallbackHandler)
    module = type(callback).__module__
    return not (shows or module.startswith((*SHOWING, "oven_learner.")) or "Progress" in type(callback).__name__)
