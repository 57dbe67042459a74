"""Knobs of one number that a trainer reads live: the gradient clip, and what TRL's trainers call β and ε.

- `grad.clip`: the gradient norm above which gradients are scaled down.
- `grpo.epsilon`, `rloo.epsilon`: how far the policy's ratio to the one that sampled may count (PPO's clipping; Schulman
  et al. 2017, arXiv 1707.06347, eq. 7), and `….epsilon_high` where the upper side has its own value (DAPO; Yu et al.
  2025, arXiv 2503.14476, eq. 10).

β is something else in each trainer, and has the name of what it is there:

- `grpo.beta`, the weight of the KL term in the loss: with the teachers (oven_learner.teachers.kl_knobs).
- `rloo.beta`: weight of the KL penalty in the reward, per completion (Ahmadian et al. 2024, arXiv 2402.14740); acts
  from the next generation on.
- `dpo.beta`: how far preferences may pull the policy from its reference (Rafailov et al. 2023, arXiv 2305.18290,
  eq. 7).
- `distillation.beta`: where the generalised Jensen-Shannon divergence lies between forward KL (0) and reverse KL (1)
  (Agarwal et al. 2024, arXiv 2306.13649). The ends are other formulas, with losses of another size: a run that was
  given one of them (TRL's default is 1) has no such knob, and one between them never reaches them.

β is read from the trainer at every loss (TRL 1.16), and announced only where what it refers to is loaded.
"""

from __future__ import annotations

from typing import Any

from oven_learner.actuators import Actuators
from oven_learner.hf.knobs.user_values import UserValues, is_a

OF = {
    "RLOOTrainer": ("rloo.beta", "× KL per completion, in the reward"),
    "DPOTrainer": ("dpo.beta", "× log-ratio to the reference, in the loss"),
}
CLIPS = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")
"""Losses with both sides (TRL 1.16, `_compute_loss`). cispo has the upper one only; sapo and vespo have none."""


def announce_clip(trainer: Any, actuators: Actuators, own: UserValues) -> None:
    """Where the trainer clips; DeepSpeed does it by itself, from a configuration read once."""
    args = trainer.args
    if args.max_grad_norm and args.max_grad_norm > 0 and not trainer.is_deepspeed_enabled:
        own.scalar(
            actuators,
            "grad.clip",
            lambda: float(args.max_grad_norm),
            lambda value: setattr(args, "max_grad_norm", value),
            unit="norm",
        )


def announce_beta(trainer: Any, actuators: Actuators, own: UserValues, bounds: tuple[float, float]) -> None:
    """`bounds` are multiples of the user's β."""

    def read() -> float:
        return float(trainer.beta)

    def write(value: float) -> None:
        trainer.beta = value

    for kind, (name, unit) in OF.items():
        if is_a(trainer, kind) and trainer.beta > 0 and _referred(trainer):
            own.scalar(actuators, name, read, write, unit=unit, bounds=bounds)
    if is_a(trainer, "DistillationTrainer") and 0 < trainer.beta < 1 and trainer.teacher_model is not None:
        name, unit = "distillation.beta", "0: forward KL, 1: reverse KL"
        most = 1 - (1 - trainer.args.beta) * bounds[0]  # as far from the upper end as the lower bound is from 0
        own.scalar(actuators, name, read, write, unit=unit, bounds=bounds, scale="linear", most=most)


def _referred(trainer: Any) -> bool:
    """Whether there is a reference: a model, the one beneath an adapter, or log-probabilities that it left."""
    if is_a(trainer, "DPOTrainer") and set(trainer.loss_types) == {"sft"}:
        return False
    policy = trainer.accelerator.unwrap_model(trainer.model)
    return (
        trainer.ref_model is not None
        or hasattr(policy, "peft_config")
        or bool(getattr(trainer, "precompute_ref_logps", False))
    )


def announce_epsilon(trainer: Any, actuators: Actuators, own: UserValues) -> None:
    """Where completions are reused after an optimizer step; before one the ratio is 1, and nothing clips."""
    kind = next((name for name in ("GRPOTrainer", "RLOOTrainer") if is_a(trainer, name)), None)
    if kind is None or not reuses(trainer):
        return
    name = "grpo.epsilon" if kind == "GRPOTrainer" else "rloo.epsilon"
    loss = getattr(trainer, "loss_type", "grpo")

    def both(value: float) -> None:
        trainer.epsilon_low = trainer.epsilon_high = value

    def low(value: float) -> None:
        trainer.epsilon_low = value

    def high(value: float) -> None:
        trainer.epsilon_high = value

    apart = trainer.args.epsilon_high is not None and trainer.args.epsilon_high != trainer.args.epsilon
    if loss in CLIPS:
        write, unit = (low, "ratio below 1") if apart else (both, "ratio around 1")
        own.scalar(actuators, name, lambda: float(trainer.epsilon_low), write, unit=unit, most=1.0)
    if loss == "cispo" or (loss in CLIPS and apart):
        unit = "ratio" if loss == "cispo" else "ratio above 1"
        own.scalar(actuators, f"{name}_high", lambda: float(trainer.epsilon_high), high, unit=unit)


def reuses(trainer: Any) -> bool:
    """TRL's own condition for keeping the sampling policy's log-probabilities (1.16, grpo_trainer.py:2643), or a
    committee's (`ahead: 1`)."""
    generate_every = trainer.args.steps_per_generation * trainer.num_iterations
    kept = trainer.args.gradient_accumulation_steps % generate_every != 0
    return bool(kept or getattr(trainer, "oven_ahead", False))
