"""The weights that an attached trainer's run ends with: the best ones, if its evaluations tell which those are.

At the end the user's `evaluate` measures, or else the trainer: its mean loss over held-out rows, or the mean reward of
greedy completions. Measuring changes nothing: afterwards the trainer, its callbacks, its reward functions and the
random generators are as before.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections import UserDict, deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from copy import copy, deepcopy
from statistics import fmean
from typing import Any, Protocol

import torch
from torch.utils.data import IterableDataset, Subset
from transformers import DefaultFlowCallback, PrinterCallback, ProgressCallback, Trainer
from transformers.trainer_callback import CallbackHandler, ExportableState

from oven_core.mesh.state import held_out
from oven_core.protocol.messages import MetricSpec
from oven_learner import random_state
from oven_learner.client.best_weights import BestWeights
from oven_learner.hf.hooks.evaluations import UserEvaluation
from oven_learner.hf.hooks.step_metrics import EVAL
from oven_learner.optim import snapshot
from oven_learner.random_state import undisturbed
from oven_learner.ranks import Ranks
from oven_learner.rollback.in_memory import KEPT

MOST_ROWS = 64
"""Held-out rows that are measured."""
DATASETS = ("train_dataset", "eval_dataset")
REPORTING = ("transformers.integrations", "transformers.utils.notebook")
"""Modules of callbacks that only report."""
SCALARS = (bool, int, float, str, bytes, type(None))
CONTAINERS = (dict, list, tuple, set, deque)


def choose_best(
    trainer: Trainer,
    announced: tuple[MetricSpec, ...],
    evaluation: UserEvaluation | None,
    ranks: Ranks,
) -> BestWeights | None:
    """Return None if the run cannot end with its best weights.

    That is so if the main held-out metric cannot be measured at the end, the trainer itself restores its best
    checkpoint (`load_best_model_at_end`), the model is sharded, or no copy fits into memory.
    """
    metric = held_out(announced)
    if metric is None or trainer.model is None or trainer.args.load_best_model_at_end:
        return None
    model = trainer.accelerator.unwrap_model(trainer.model)
    sharded = trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled or snapshot.sharded(model)
    read = _reader(trainer, metric.name, evaluation)
    if sharded or read is None or not snapshot.best_fits(model, KEPT + 2):
        return None
    copies = snapshot.WeightCopies(model, lambda: _forget_vllm_weights(trainer))
    return BestWeights(metric, take=copies.take, restore=copies.restore, read=read, ranks=ranks)


def _reader(trainer: Trainer, name: str, evaluation: UserEvaluation | None) -> Callable[[], float] | None:
    """Return a function that measures the metric now: the user's `evaluate`, or else the trainer's own evaluation."""
    if evaluation is not None and evaluation.measures(name):
        user_evaluation = evaluation

        def read() -> float:
            with undisturbed(trainer.model):
                return user_evaluation.read(name)

        return read
    if trainer.args.eval_strategy == "no":
        return None
    score = HeldOutScore.for_metric(trainer, name)
    return score.read if score is not None else None


def _forget_vllm_weights(trainer: Any) -> None:
    """Make TRL load the weights into vLLM again."""
    if hasattr(trainer, "_last_loaded_step"):
        trainer._last_loaded_step = -1


class HeldOutRows(Protocol):
    """Scores each held-out row; always the same rows."""

    def can_be_scored(self) -> bool:
        """Whether this trainer's rows can be scored."""

    def measure(self) -> list[float]:
        """Return one score per row. The caller sets evaluation mode, and restores what this changes."""


class HeldOutScore:
    """The mean score of a trainer's held-out rows. Made when training begins."""

    def __init__(self, trainer: Any, rows: HeldOutRows) -> None:
        self._trainer, self._rows = trainer, rows
        callbacks = trainer.callback_handler.callbacks
        rewards = getattr(trainer, "reward_funcs", ())
        self._values = [
            PlainValues(trainer, skip=DATASETS),
            *(PlainValues(callback) for callback in callbacks if _is_part_of_training(callback)),
            *(_counters(reward) for reward in rewards if _is_object(reward)),
        ]

    @classmethod
    def for_metric(cls, trainer: Any, metric: str) -> HeldOutScore | None:
        """Return the score that `metric` is the mean of; None if this trainer has none or it cannot be measured."""
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
        rows = GreedyRewards(trainer, dataset) if has_rewards else RowLosses(trainer, dataset)
        return cls(trainer, rows) if rows.can_be_scored() else None

    def read(self) -> float:
        """Measure now."""
        model = self._trainer.model
        before = [(values, values.take()) for values in self._values]
        try:
            with random_state.undisturbed(model), torch.no_grad():
                model.eval()
                return fmean(self._rows.measure())
        finally:
            for values, state in before:
                values.restore(state)


class RowLosses:
    """The trainer's loss of each row in its own batch, so that no loss depends on other rows. Rows are collated once: a
    collator that masks at random masks the same each time."""

    def __init__(self, trainer: Any, dataset: Any) -> None:
        self._trainer, self._dataset = trainer, dataset
        self._batches: list[Any] | None = None

    def can_be_scored(self) -> bool:
        return True

    def measure(self) -> list[float]:
        if self._batches is None:
            self._batches = self._collate()
        trainer, losses = self._trainer, []
        for batch in self._batches:
            loss, _, _ = trainer.prediction_step(trainer.model, copied(batch), prediction_loss_only=True)
            losses.append(loss)
        if any(loss is None for loss in losses):
            raise ValueError("the model gives no loss for a row: have the rows hold labels, or give an evaluate=")
        return [float(loss) for loss in torch.stack([loss.detach().float().mean() for loss in losses]).cpu()]

    def _collate(self) -> list[Any]:
        trainer = self._trainer
        persistent, trainer.args.dataloader_persistent_workers = trainer.args.dataloader_persistent_workers, False
        try:
            loader = trainer.get_eval_dataloader(_first_rows(self._dataset))  # with the model's columns and collator
        finally:
            trainer.args.dataloader_persistent_workers = persistent
        prepared = getattr(trainer.accelerator, "_dataloaders", [])  # accelerate would save its state
        prepared[:] = [other_loader for other_loader in prepared if other_loader is not loader]
        return [loader.collate_fn([row]) for row in itertools.islice(iter(loader.dataset), MOST_ROWS)]


class GreedyRewards:
    """The trainer's reward of one greedy completion of each held-out prompt.

    The reward weights stay those of the start of training: changed weights alone would change the score.
    """

    def __init__(self, trainer: Any, dataset: Any) -> None:
        self._trainer = trainer
        self._rows = [dict(row) for row in itertools.islice(iter(_first_rows(dataset)), MOST_ROWS)]
        weights = getattr(trainer, "reward_weights", None)
        self._weights = weights.detach().clone() if weights is not None else torch.ones(len(trainer.reward_funcs))

    def can_be_scored(self) -> bool:
        trainer = self._trainer
        if not (hasattr(trainer, "_generate") and hasattr(trainer, "_calculate_rewards")):
            return False
        if any(getattr(trainer, name, None) for name in ("tools", "rollout_func", "environment_factories")):
            return False  # these answer differently each time
        return bool(self._rows) and not any({"image", "images"} & row.keys() for row in self._rows)

    def measure(self) -> list[float]:
        size = max(1, self._trainer.args.per_device_eval_batch_size)
        chunks = [self._rows[start : start + size] for start in range(0, len(self._rows), size)]
        return [reward for chunk in chunks for reward in self._rewards(chunk)]

    def _rewards(self, rows: list[dict[str, Any]]) -> list[float]:
        trainer, rows = self._trainer, copied(rows)
        prompts = [row["prompt"] for row in rows]
        with _greedy(trainer):
            # (prompt ids, completion ids, …, completions, …): RLOO returns three values, GRPO eight
            generated = trainer._generate(prompts)
        ids, completions = generated[1], generated[3 if len(generated) > 3 else 2]
        scores = trainer._calculate_rewards(rows, prompts, completions, ids)  # [ranks × rows, functions]
        own = scores[trainer.accelerator.process_index * len(rows) :][: len(rows)]
        weighted = (own * self._weights.to(own.device)).nansum(1)
        unscored = own.isnan().all(1)  # no function has scored it; that is not a reward of 0
        return [float(reward) for reward in weighted.masked_fill(unscored, math.nan).cpu()]


class PlainValues:
    """The attributes of an object that are numbers, strings, tensors, arrays, or containers.

    Trainers and callbacks store in them what they count, buffer and average.
    """

    def __init__(self, owner: Any, *, skip: Collection[str] = (), containers: bool = True) -> None:
        """`skip`: attributes to leave alone. `containers`: whether containers are included."""
        self._owner, self._skip, self._containers = owner, frozenset(skip), containers

    def take(self) -> dict[str, Any]:
        """Return copies of the attributes."""
        return {name: copied(value) for name, value in vars(self._owner).items() if self._is_plain(name, value)}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the attributes, and remove those that were added since."""
        attributes = vars(self._owner)
        for name in [name for name, value in attributes.items() if name not in state and self._is_plain(name, value)]:
            del attributes[name]
        for name, value in state.items():
            attributes[name] = restored(attributes.get(name), value)

    def _is_plain(self, name: str, value: Any) -> bool:
        if name in self._skip:
            return False
        types = (*SCALARS, *CONTAINERS) if self._containers else SCALARS
        return isinstance(value, types) or _is_array(value) or (_is_tensor(value) and not value.requires_grad)


def copied(tree: Any) -> Any:
    """Copy tensors, arrays and containers at any depth. Other values stay the same objects."""
    if _is_tensor(tree):
        return tree.detach().clone()
    if isinstance(tree, UserDict):  # a tokenizer's batch
        batch: Any = copy(tree)
        batch.data = copied(tree.data)
        return batch
    if isinstance(tree, dict):
        mapping = copy(tree)  # keeps the class, and a defaultdict's default
        for key, value in tree.items():
            mapping[key] = copied(value)
        return mapping
    if isinstance(tree, deque):
        return deque((copied(value) for value in tree), tree.maxlen)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(copied(value) for value in tree))
    if isinstance(tree, list | tuple | set):
        return type(tree)(copied(value) for value in tree)
    return tree.copy() if _is_array(tree) else tree


def restored(present: Any, saved: Any) -> Any:
    """Return a value equal to `saved`: if possible the `present` object, changed in place, because others may refer to
    it, else a copy of `saved`."""
    if _is_tensor(present) and _is_tensor(saved):
        return present if _write_into(present, saved) else copied(saved)
    if type(present) is not type(saved):
        return copied(saved)
    if isinstance(present, dict):
        previous = dict(present)
        present.clear()
        present.update({key: restored(previous.get(key), value) for key, value in saved.items()})
        return present
    if isinstance(present, list):
        present[:] = copied(saved)
        return present
    if isinstance(present, deque | set):
        present.clear()
        (present.extend if isinstance(present, deque) else present.update)(copied(saved))
        return present
    return copied(saved)


def _write_into(present: Any, saved: Any) -> bool:
    """Copy `saved` into the tensor `present` if that is possible; return whether it was."""
    if present.shape != saved.shape or present.dtype != saved.dtype or present.device != saved.device:
        return False
    if present.is_inference() or not present.is_contiguous():
        return False
    present.detach().copy_(saved)
    return True


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "detach") and hasattr(value, "clone") and hasattr(value, "dtype")


def _is_array(value: Any) -> bool:
    return type(value).__module__ == "numpy" and hasattr(value, "dtype")


def _first_rows(dataset: Any) -> Any:
    """Return at most MOST_ROWS rows without reading the others."""
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        return dataset
    indices = range(min(MOST_ROWS, len(dataset)))
    return dataset.select(indices) if hasattr(dataset, "select") else Subset(dataset, indices)


@contextmanager
def _greedy(trainer: Any) -> Iterator[None]:
    sampling = trainer.generation_config
    trainer.generation_config = deepcopy(sampling)
    trainer.generation_config.do_sample = False
    try:
        yield
    finally:
        trainer.generation_config = sampling


def _is_object(reward: Any) -> bool:
    """Whether a reward function may have state: it is neither a plain function nor a model."""
    return hasattr(reward, "__dict__") and not isinstance(reward, torch.nn.Module) and not inspect.isroutine(reward)


def _counters(reward: Any) -> PlainValues:
    """Return the state of a reward function. Of a committee that is only its count of batches, which its random draws
    depend on."""
    return PlainValues(reward, containers=not type(reward).__module__.startswith("oven_learner."))


def _is_part_of_training(callback: Any) -> bool:
    """Whether a callback's state belongs to the training, rather than to what it shows or publishes."""
    if isinstance(callback, ExportableState):
        return True
    shows = isinstance(callback, DefaultFlowCallback | PrinterCallback | ProgressCallback | CallbackHandler)
    module = type(callback).__module__
    return not (shows or module.startswith((*REPORTING, "oven_learner.")) or "Progress" in type(callback).__name__)
