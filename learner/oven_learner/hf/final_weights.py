"""What an attached trainer's run may end with in the place of its last weights, where its evaluations say which."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean
from typing import Any

from transformers import Trainer

from oven_core.mesh.state import held_out
from oven_core.protocol.messages import MetricSpec
from oven_learner.client.best_weights import BestWeights
from oven_learner.hf.branch import TrainerBranch
from oven_learner.hf.evaluations import UserEvaluation
from oven_learner.optim import snapshot
from oven_learner.ranks import Ranks
from oven_learner.rollback.in_memory import KEPT
from oven_learner.trials.random_state import undisturbed


def choose_best(
    trainer: Trainer,
    announced: tuple[MetricSpec, ...],
    evaluation: UserEvaluation | None,
    branch: TrainerBranch,
    ranks: Ranks,
) -> BestWeights | None:
    """None where the held-out metric that stands for the whole cannot be read at the end, the trainer itself goes back
    to its best checkpoint (`load_best_model_at_end`), parts of the model are on other ranks, or no copy fits."""
    metric = held_out(announced)
    if metric is None or trainer.model is None or trainer.args.load_best_model_at_end:
        return None
    model = trainer.accelerator.unwrap_model(trainer.model)
    sharded = trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled or snapshot.sharded(model)
    read = _reader(trainer, metric.name, evaluation, branch)
    if sharded or read is None or not snapshot.best_fits(model, KEPT + 2):
        return None
    copies = snapshot.WeightCopies(model, lambda: _stale(trainer))
    return BestWeights(metric, take=copies.take, restore=copies.restore, read=read, ranks=ranks)


def _reader(
    trainer: Trainer, name: str, evaluation: UserEvaluation | None, branch: TrainerBranch
) -> Callable[[], float] | None:
    """The user's function where it measures the metric, else the trainer's evaluation, on the rows that trials compare
    arms by."""
    if evaluation is not None and evaluation.measures(name):
        users = evaluation

        def read() -> float:
            with undisturbed(trainer.model):
                return users.read(name)

        return read
    if trainer.args.eval_strategy == "no" or branch.unreadable() or branch.reading.name != name:
        return None
    return lambda: fmean(branch.examples())


def _stale(trainer: Any) -> None:
    """vLLM has the weights of another step."""
    if hasattr(trainer, "_last_loaded_step"):
        trainer._last_loaded_step = -1
