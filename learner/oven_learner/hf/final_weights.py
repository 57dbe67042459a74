"""Measures an attached trainer's weights at the end of the run, so that `run.best` can select the better ones.

The score comes from the user's evaluation, or from a built-in score of the first MAX_ROWS held-out rows. The built-in
score is the mean loss of the rows, or the mean reward of one greedy answer per prompt. Scoring does not change the
random generators, the train or eval modes of the modules, or TRL's metrics.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from statistics import fmean
from typing import Any

import torch
from torch.utils.data import IterableDataset, Subset
from transformers import Trainer

from oven_core.mesh.state import main_held_out_metric
from oven_core.protocol.messages import MetricSpec
from oven_learner import trainer_internals
from oven_learner.client.best_weights import BestWeights
from oven_learner.hf.hooks.evaluations import EVAL, UserEvaluation
from oven_learner.hf.trainer_rollback import can_copy
from oven_learner.optim import snapshot
from oven_learner.random_state import preserve_state
from oven_learner.ranks import Ranks
from oven_learner.rollback.snapshot_memory import best_weights_fit

MAX_ROWS = 64
"""Maximum number of held-out rows that the built-in score uses."""


def create_best_weights(
    trainer: Trainer, announced: tuple[MetricSpec, ...], evaluation: UserEvaluation | None, ranks: Ranks
) -> BestWeights | None:
    """Return a `BestWeights`, or None if the run cannot end with the best weights. There are four reasons for None: the
    main held-out metric cannot be measured at the end, the trainer itself restores its best checkpoint
    (`load_best_model_at_end`), FSDP1 or DeepSpeed shards the model, or no copy fits into memory."""
    metric = main_held_out_metric(announced)
    if metric is None or trainer.model is None or trainer.args.load_best_model_at_end:
        return None
    model = trainer.accelerator.unwrap_model(trainer.model)
    measure = _choose_measure(trainer, metric.name, evaluation)
    if measure is None or not (can_copy(trainer) and best_weights_fit(snapshot.snapshot_bytes(model), ranks)):
        return None
    copies = snapshot.WeightCopies(model, lambda: trainer_internals.reload_vllm_weights(trainer))
    uses_builtin_score = evaluation is None or metric.name not in evaluation.first_results()
    method = "greedy" if hasattr(trainer, "reward_funcs") else "row by row"
    return BestWeights(
        metric,
        copy=copies.take,
        restore=copies.restore,
        measure=measure,
        ranks=ranks,
        score_name=f"{metric.name} ({method}, at most {MAX_ROWS} rows)" if uses_builtin_score else "",
    )


def _choose_measure(trainer: Trainer, name: str, evaluation: UserEvaluation | None) -> Callable[[], float] | None:
    """Return a function that measures the metric with the user's `evaluate`, or else with the built-in score."""
    if evaluation is not None and name in evaluation.first_results():
        return partial(evaluation.measure_one, name)
    if trainer.args.eval_strategy == "no":
        return None
    return held_out_score(trainer, name)


def held_out_score(trainer: Any, metric: str) -> Callable[[], float] | None:
    """Return a function that measures the mean score of the trainer's held-out rows, always the same rows. Returns None
    if `metric` is not the mean of such scores, or if they cannot be measured. Call this when training begins."""
    dataset = trainer.eval_dataset
    if dataset is None or getattr(trainer, "use_vllm", False):  # vLLM's random generator cannot be restored
        return None
    prefix = EVAL
    if isinstance(dataset, dict):
        name, dataset = next(iter(dataset.items()))
        prefix = f"{EVAL}{name}_"
    has_rewards = hasattr(trainer, "reward_funcs")
    if metric != f"{prefix}{'reward' if has_rewards else 'loss'}":
        return None
    scorer = GreedyRewards(trainer, dataset) if has_rewards else RowLosses(trainer, dataset)
    if isinstance(scorer, GreedyRewards) and not scorer.can_be_scored():
        return None

    def measure() -> float:
        with trainer_internals.preserve_metrics(trainer), preserve_state(trainer.model), torch.no_grad():
            trainer.model.eval()
            return fmean(scorer.measure())

    return measure


class RowLosses:
    """The trainer's loss of each held-out row. Each row is its own batch, so that its loss does not depend on other
    rows. Rows are collated once, so that a collator with random masking always masks the same tokens."""

    def __init__(self, trainer: Any, dataset: Any) -> None:
        self._trainer, self._dataset = trainer, dataset
        self._batches: list[Any] | None = None

    def measure(self) -> list[float]:
        if self._batches is None:
            self._batches = self._collate()
        trainer, losses = self._trainer, []
        for batch in self._batches:
            loss, _, _ = trainer.prediction_step(trainer.model, deepcopy(batch), prediction_loss_only=True)
            losses.append(loss)
        if any(loss is None for loss in losses):
            raise ValueError("the model returns no loss for a row; add labels to the rows, or pass evaluate=")
        return [float(loss) for loss in torch.stack([loss.detach().float().mean() for loss in losses]).cpu()]

    def _collate(self) -> list[Any]:
        trainer = self._trainer
        persistent, trainer.args.dataloader_persistent_workers = trainer.args.dataloader_persistent_workers, False
        try:
            loader = trainer.get_eval_dataloader(_first_rows(self._dataset))  # selects columns and sets the collator
        finally:
            trainer.args.dataloader_persistent_workers = persistent
        trainer_internals.forget_loader(trainer.accelerator, loader)
        return [loader.collate_fn([row]) for row in itertools.islice(iter(loader.dataset), MAX_ROWS)]


class GreedyRewards:
    """The trainer's reward of one greedy completion of each held-out prompt. It uses the reward weights from the start
    of training, because changed weights alone would change the score."""

    def __init__(self, trainer: Any, dataset: Any) -> None:
        self._trainer = trainer
        self._rows = [dict(row) for row in itertools.islice(iter(_first_rows(dataset)), MAX_ROWS)]
        weights = getattr(trainer, "reward_weights", None)
        self._weights = weights.detach().clone() if weights is not None else torch.ones(len(trainer.reward_funcs))

    def can_be_scored(self) -> bool:
        """Whether the trainer can score these rows, with the same result each time."""
        trainer = self._trainer
        if not trainer_internals.GREEDY_REWARDS.works_on(trainer):
            return False
        if any(getattr(trainer, name, None) for name in ("tools", "rollout_func", "environment_factories")):
            return False
        return bool(self._rows) and not any({"image", "images"} & row.keys() for row in self._rows)

    def measure(self) -> list[float]:
        size = max(1, self._trainer.args.per_device_eval_batch_size)
        batches = [self._rows[start : start + size] for start in range(0, len(self._rows), size)]
        return [reward for batch in batches for reward in self._reward_batch(batch)]

    def _reward_batch(self, rows: list[dict[str, Any]]) -> list[float]:
        trainer, rows = self._trainer, deepcopy(rows)
        prompts = [row["prompt"] for row in rows]
        with _greedy_decoding(trainer):
            ids, completions = trainer_internals.generate(trainer, prompts)
        scores = trainer_internals.calculate_rewards(trainer, rows, prompts, completions, ids)
        first_row = trainer.accelerator.process_index * len(rows)
        rank_scores = scores[first_row : first_row + len(rows)]
        rewards = (rank_scores * self._weights.to(rank_scores.device)).nansum(1)
        is_unscored = rank_scores.isnan().all(1)  # without any score, the reward is NaN instead of 0
        return [float(reward) for reward in rewards.masked_fill(is_unscored, math.nan).cpu()]


def _first_rows(dataset: Any) -> Any:
    """Return at most MAX_ROWS rows, without reading the others."""
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        return dataset
    indices = range(min(MAX_ROWS, len(dataset)))
    return dataset.select(indices) if hasattr(dataset, "select") else Subset(dataset, indices)


@contextmanager
def _greedy_decoding(trainer: Any) -> Iterator[None]:
    sampling = trainer.generation_config
    trainer.generation_config = deepcopy(sampling)
    trainer.generation_config.do_sample = False
    try:
        yield
    finally:
        trainer.generation_config = sampling
