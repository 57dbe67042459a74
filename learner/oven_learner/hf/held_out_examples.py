"""The held-out reading of a trainer, example by example: the user's own, its loss on each row, or its greedy reward."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch.utils.data import IterableDataset, Subset

from oven_core.protocol.messages import MetricSpec
from oven_learner.client.held_out_evaluation import better
from oven_learner.hf.evaluations import UserEvaluation
from oven_learner.hf.step_metrics import EVAL
from oven_learner.trials.copies import copied

MOST = 64
"""Rows: enough for a paired comparison, few enough for every trial."""


class HeldOutExamples(Protocol):
    """A reading of each of the same examples, in the same order."""

    reading: MetricSpec

    def problem(self) -> str:
        """Why there is none, in a sentence with the remedy."""

    def measure(self) -> list[float]:
        """Called with the model in evaluation mode; who calls puts back what it draws and counts."""


def choose(trainer: Any, evaluation: UserEvaluation | None) -> HeldOutExamples | None:
    """The user's own before the trainer's; None where nothing is held out."""
    if evaluation is not None and (reading := _users_reading(evaluation)) is not None:
        return UserExamples(evaluation, reading)
    rows = trainer.eval_dataset
    if rows is None:
        return None
    of = ""
    if isinstance(rows, dict):
        name, rows = next(iter(rows.items()))
        of = f"{name}_"
    if hasattr(trainer, "reward_funcs"):
        return GreedyRewards(trainer, rows, MetricSpec(name=f"{EVAL}{of}reward", better="up", held_out=True))
    return RowLosses(trainer, rows, MetricSpec(name=f"{EVAL}{of}loss", better="down", held_out=True))


class UserExamples:
    """What the user's `evaluate` returns as a list."""

    def __init__(self, evaluation: UserEvaluation, reading: MetricSpec) -> None:
        self._evaluation, self.reading = evaluation, reading

    def problem(self) -> str:
        return ""

    def measure(self) -> list[float]:
        return self._evaluation.examples(self.reading.name)


class RowLosses:
    """The trainer's loss of each row by itself, so that no row's depends on the others in its batch. Rows are collated
    once: a collator that masks at random masks the same each time."""

    def __init__(self, trainer: Any, rows: Any, reading: MetricSpec) -> None:
        self._trainer, self._rows, self.reading = trainer, rows, reading
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

    def __init__(self, trainer: Any, rows: Any, reading: MetricSpec) -> None:
        self._trainer, self.reading = trainer, reading
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


def _users_reading(evaluation: UserEvaluation) -> MetricSpec | None:
    """The first metric that is measured example by example, with a direction."""
    for name in evaluation.measured_by_example():
        spec = next((one for one in evaluation.specs if one.name == name), MetricSpec(name=name, better=better(name)))
        if spec.better != "neither":
            return spec.model_copy(update={"held_out": True})
    return None


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
