"""What an attached trainer's run may end with in the place of its last weights, where its evaluations say which."""

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

SCALARS = (bool, int, float, str, bytes, type(None))
CONTAINERS = (dict, list, tuple, set, deque)


def copied(tree: Any) -> Any:
    """Tensors, arrays and containers anew, at any depth; anything else is the same object."""
    if is_tensor(tree):
        return tree.detach().clone()
    if isinstance(tree, UserDict):  # a tokenizer's batch
        batch: Any = copy(tree)
        batch.data = copied(tree.data)
        return batch
    if isinstance(tree, dict):
        other = copy(tree)  # keeps a default, and a class of its own
        for key, value in tree.items():
            other[key] = copied(value)
        return other
    if isinstance(tree, deque):
        return deque((copied(value) for value in tree), tree.maxlen)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(copied(value) for value in tree))
    if isinstance(tree, list | tuple | set):
        return type(tree)(copied(value) for value in tree)
    return tree.copy() if is_array(tree) else tree


def put(now: Any, then: Any) -> Any:
    """What takes the place of `now` to be as `then`: itself where it can be written into, since others may refer to it,
    and else a copy."""
    if is_tensor(now) and is_tensor(then):
        return now if _written(now, then) else copied(then)
    if type(now) is not type(then):
        return copied(then)
    if isinstance(now, dict):
        held = dict(now)
        now.clear()
        now.update({key: put(held.get(key), value) for key, value in then.items()})
        return now
    if isinstance(now, list):
        now[:] = copied(then)
        return now
    if isinstance(now, deque | set):
        now.clear()
        (now.extend if isinstance(now, deque) else now.update)(copied(then))
        return now
    return copied(then)


class PlainValues:
    """The attributes of an object that are numbers, strings, tensors, arrays, or containers: where trainers and
    callbacks keep what they count, buffer and average."""

    def __init__(self, owner: Any, *, leave: Collection[str] = (), containers: bool = True) -> None:
        """`leave`: attributes that are not touched. Without `containers`, neither are those that are one."""
        self._owner, self._leave, self._containers = owner, frozenset(leave), containers

    def take(self) -> dict[str, Any]:
        return {name: copied(value) for name, value in vars(self._owner).items() if self._is_plain(name, value)}

    def restore(self, state: dict[str, Any]) -> None:
        """Attributes that were added since are removed."""
        own = vars(self._owner)
        for name in [name for name, value in own.items() if name not in state and self._is_plain(name, value)]:
            del own[name]
        for name, value in state.items():
            own[name] = put(own.get(name), value)

    def _is_plain(self, name: str, value: Any) -> bool:
        if name in self._leave:
            return False
        held = (*SCALARS, *CONTAINERS) if self._containers else SCALARS
        return isinstance(value, held) or is_array(value) or (is_tensor(value) and not value.requires_grad)


def _written(now: Any, then: Any) -> bool:
    """Not where one element stands for several, or in what torch's inference mode made."""
    if now.shape != then.shape or now.dtype != then.dtype or now.device != then.device:
        return False
    if now.is_inference() or not now.is_contiguous():
        return False
    now.detach().copy_(then)
    return True


def is_tensor(value: Any) -> bool:
    return hasattr(value, "detach") and hasattr(value, "clone") and hasattr(value, "dtype")


def is_array(value: Any) -> bool:
    return type(value).__module__ == "numpy" and hasattr(value, "dtype")


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
    trainer.generation_config = deepcopy(sampling)
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


def choose_best(
    trainer: Trainer,
    announced: tuple[MetricSpec, ...],
    evaluation: UserEvaluation | None,
    ranks: Ranks,
) -> BestWeights | None:
    """None where the held-out metric that stands for the whole cannot be read at the end, the trainer itself goes back
    to its best checkpoint (`load_best_model_at_end`), parts of the model are on other ranks, or no copy fits."""
    metric = held_out(announced)
    if metric is None or trainer.model is None or trainer.args.load_best_model_at_end:
        return None
    model = trainer.accelerator.unwrap_model(trainer.model)
    sharded = trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled or snapshot.sharded(model)
    read = _reader(trainer, metric.name, evaluation)
    if sharded or read is None or not snapshot.best_fits(model, KEPT + 2):
        return None
    copies = snapshot.WeightCopies(model, lambda: _stale(trainer))
    return BestWeights(metric, take=copies.take, restore=copies.restore, read=read, ranks=ranks)


def _reader(trainer: Trainer, name: str, evaluation: UserEvaluation | None) -> Callable[[], float] | None:
    """Return a function that measures the metric now: the user's `evaluate`, or else the trainer's own evaluation."""
    if evaluation is not None and evaluation.measures(name):
        users = evaluation

        def read() -> float:
            with undisturbed(trainer.model):
                return users.read(name)

        return read
    if trainer.args.eval_strategy == "no":
        return None
    score = HeldOutScore.of(trainer, name)
    return score.read if score is not None else None


def _stale(trainer: Any) -> None:
    """vLLM has the weights of another step."""
    if hasattr(trainer, "_last_loaded_step"):
        trainer._last_loaded_step = -1
