"""Knobs that a trainer reads again at every step, such as the gradient clip, TRL's β and ε, and reward weights.

- `grad.clip`: the gradient norm above which gradients are scaled down.
- `grpo.epsilon`, `rloo.epsilon`: the clip range of the probability ratio between the current policy and the one that
  sampled (PPO; Schulman et al. 2017, arXiv 1707.06347, eq. 7), and `….epsilon_high` if the upper side has its own value
  (DAPO; Yu et al. 2025, arXiv 2503.14476, eq. 10).

β has a different meaning in each trainer, so the knob is named after the trainer:

- `grpo.beta`: the weight of the KL term in the loss (defined in oven_learner.teachers.kl_knobs).
- `rloo.beta`: the weight of the KL penalty in the reward, per completion (Ahmadian et al. 2024, arXiv 2402.14740). It
  takes effect with the next generation.
- `dpo.beta`: how far preferences may pull the policy from its reference (Rafailov et al. 2023, arXiv 2305.18290,
  eq. 7).
- `distillation.beta`: the position of the generalised Jensen-Shannon divergence between forward KL (0) and reverse
  KL (1) (Agarwal et al. 2024, arXiv 2306.13649). The two ends use different formulas, and their losses differ in scale.
  A run at one end (TRL's default is 1) has no such knob. In any other run, the knob never reaches an end.

TRL 1.16 reads β for every loss. It is a knob only if the model that it refers to is loaded.

Gradient accumulation is not a knob. transformers 5.23 reads `args.gradient_accumulation_steps` at each step to decide
how many micro-batches to fetch (trainer.py:1871). It also compares it with a counter for the epoch to decide when to
step (1889). After a change, the optimizer would step within a fetched group, with losses scaled for a complete group,
unless the change happens at a multiple of both numbers. Even then, and also between two epochs, the number of steps per
epoch (1869) and the position after a restart (1706) assume one value for the whole training. So rows would be dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from oven_learner import trainer_internals
from oven_learner.actuators import Actuators
from oven_learner.optim import weight_decay, zero_gauges
from oven_learner.optim.lr_scale import USER_BOUNDS
from oven_learner.optim.zero_gauges import zero_optimizer
from oven_learner.trainer_internals import is_a

log = logging.getLogger("oven.learner")
WEIGHTS = "reward.weights"


def register_reward_weights(trainer: Any, actuators: Actuators) -> None:
    """Register `reward.weights`, each function's share of the user's total weight. A committee registers its own. A
    change takes effect with the next generation. The knob is not registered if the weights are not shares: with a
    negative weight (a penalty), a sum of 0, or two functions with the same name."""
    names = tuple(getattr(trainer, "reward_func_names", ()))
    if len(names) < 2 or WEIGHTS in actuators:
        return
    weights = trainer.reward_weights  # [functions], read again at every generation (TRL 1.16)
    total = float(weights.sum())
    if len(set(names)) < len(names) or bool((weights < 0).any()) or not total > 0:
        log.info("%s is not available, because the weights %s of %s are not shares", WEIGHTS, weights.tolist(), names)
        return

    def read() -> dict[str, float]:
        shares = weights.double() / float(weights.double().sum())
        return dict(zip(names, shares.tolist(), strict=True))

    def write(shares: dict[str, float]) -> None:
        weights.copy_(weights.new_tensor([shares[name] * total for name in names]))

    actuators.simplex(WEIGHTS, read, write, moves_own_metric=True)


BETAS = {
    "RLOOTrainer": ("rloo.beta", "× KL per completion, in the reward"),
    "DPOTrainer": ("dpo.beta", "× log-ratio to the reference, in the loss"),
}
"""Trainer class → its knob for β, and the unit."""
TWO_SIDED_LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")
"""Losses that clip on both sides (TRL 1.16, `_compute_loss`). cispo clips only above, sapo and vespo do not clip."""


def register_clip(trainer: Any, actuators: Actuators, user_values: UserValues) -> None:
    """Register `grad.clip` if the trainer clips, or if DeepSpeed's ZeRO does, which reads only its own attribute."""
    owner, name = trainer.args, "max_grad_norm"
    if trainer.is_deepspeed_enabled:
        owner, name = zero_optimizer(trainer.optimizer), zero_gauges.CLIP
    if (getattr(owner, name, None) or 0) > 0:
        user_values.register(
            actuators, "grad.clip", lambda: float(getattr(owner, name)), partial(setattr, owner, name), unit="norm"
        )


def register_beta(trainer: Any, actuators: Actuators, user_values: UserValues, bounds: tuple[float, float]) -> None:
    """Register the trainer's β, with `bounds` as multiples of the user's value."""
    read, write = lambda: float(trainer.beta), partial(setattr, trainer, "beta")
    for trainer_class, (name, unit) in BETAS.items():
        if is_a(trainer, trainer_class) and trainer.beta > 0 and _has_reference(trainer):
            user_values.register(actuators, name, read, write, unit=unit, bounds=bounds, moves_own_metric=True)
    if is_a(trainer, "DistillationTrainer") and 0 < trainer.beta < 1 and trainer.teacher_model is not None:
        name, unit = "distillation.beta", "0: forward KL, 1: reverse KL"
        max_value = 1 - (1 - trainer.args.beta) * bounds[0]  # keeps a distance from 1, like the lower bound from 0
        user_values.register(
            actuators, name, read, write, unit=unit, bounds=bounds, scale="linear", max_value=max_value,
            moves_own_metric=True,
        )  # fmt: skip


def _has_reference(trainer: Any) -> bool:
    """Whether there is a reference model, the base model of an adapter, or precomputed log-probabilities."""
    if is_a(trainer, "DPOTrainer") and trainer_internals.dpo_losses(trainer) == {"sft"}:
        return False
    policy = trainer.accelerator.unwrap_model(trainer.model)
    return (
        trainer.ref_model is not None
        or hasattr(policy, "peft_config")
        or trainer_internals.has_precomputed_reference(trainer)
    )


def register_epsilon(trainer: Any, actuators: Actuators, user_values: UserValues) -> None:
    """Register ε if completions are reused after an optimizer step. Before that, the ratio is 1 and never clipped."""
    trainer_class = next((name for name in ("GRPOTrainer", "RLOOTrainer") if is_a(trainer, name)), None)
    if trainer_class is None or not reuses_completions(trainer):
        return
    name = "grpo.epsilon" if trainer_class == "GRPOTrainer" else "rloo.epsilon"
    loss = getattr(trainer, "loss_type", "grpo")

    def set_both(value: float) -> None:
        trainer.epsilon_low = trainer.epsilon_high = value

    set_low, set_high = partial(setattr, trainer, "epsilon_low"), partial(setattr, trainer, "epsilon_high")
    is_asymmetric = trainer.args.epsilon_high is not None and trainer.args.epsilon_high != trainer.args.epsilon
    if loss in TWO_SIDED_LOSSES:
        write, unit = (set_low, "ratio below 1") if is_asymmetric else (set_both, "ratio around 1")
        user_values.register(actuators, name, lambda: float(trainer.epsilon_low), write, unit=unit, max_value=1.0)
    if loss == "cispo" or (loss in TWO_SIDED_LOSSES and is_asymmetric):
        unit = "ratio" if loss == "cispo" else "ratio above 1"
        user_values.register(actuators, f"{name}_high", lambda: float(trainer.epsilon_high), set_high, unit=unit)


def reuses_completions(trainer: Any) -> bool:
    """Whether completions are reused. This is TRL's condition for keeping the sampling policy's log-probabilities
    (1.16, grpo_trainer.py:2643), or a committee with `ahead: 1`."""
    generate_every = trainer.args.steps_per_generation * trainer.num_iterations
    keeps_log_probs = trainer.args.gradient_accumulation_steps % generate_every != 0
    return bool(keeps_log_probs or getattr(trainer, "oven_ahead", False))


def register_knobs(
    trainer: Any, actuators: Actuators, user_values: UserValues, beta_bounds: tuple[float, float]
) -> None:
    """Register `grad.clip`, `optimizer.weight_decay`, β and ε, if this trainer has them."""
    register_clip(trainer, actuators, user_values)
    weight_decay.register_knob([trainer.optimizer], actuators)
    register_beta(trainer, actuators, user_values, beta_bounds)
    register_epsilon(trainer, actuators, user_values)


class UserValues:
    """The user's value of each knob, stored at the first `train()`, because decisions change the value later."""

    def __init__(self) -> None:
        self._values: dict[str, float] = {}

    def register(
        self,
        actuators: Actuators,
        name: str,
        read: Callable[[], float],
        write: Callable[[float], object],
        *,
        unit: str,
        bounds: tuple[float, float] = USER_BOUNDS,
        scale: Literal["linear", "log"] = "log",
        max_value: float = float("inf"),
        moves_own_metric: bool = False,
    ) -> None:
        """Register `name`, unless it is registered. `bounds` are multiples of the user's value, up to `max_value`."""
        if name in actuators:
            return
        user_value = self._values.setdefault(name, read())
        low, high = user_value * bounds[0], min(user_value * bounds[1], max(user_value, max_value))
        actuators.scalar(
            name, read, write, low=low, high=high, scale=scale, unit=unit, moves_own_metric=moves_own_metric
        )
