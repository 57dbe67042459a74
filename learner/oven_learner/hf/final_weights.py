"""What an attached trainer's run may end with in the place of its last weights, where its evaluations say which."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import Trainer

from oven_core.mesh.state import held_out
from oven_core.protocol.messages import MetricSpec
from oven_learner.client.best_weights import BestWeights
from oven_learner.hf.evaluations import UserEvaluation
from oven_learner.hf.held_out_examples import HeldOutScore
from oven_learner.optim import snapshot
from oven_learner.random_state import undisturbed
from oven_learner.ranks import Ranks
from oven_learner.rollback.in_memory import KEPT


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
