"""What TRL's trainers call β, which is something else in each, under the name of what it is there.

- `grpo.beta`, the weight of the KL term in the loss: with the teachers (oven_learner.teachers.kl_knobs).
- `rloo.beta`: weight of the KL penalty in the reward, per completion (Ahmadian et al. 2024, arXiv 2402.14740); acts
  from the next generation on.
- `dpo.beta`: how far preferences may pull the policy from its reference (Rafailov et al. 2023, arXiv 2305.18290,
  eq. 7).
- `distillation.beta`: where the generalised Jensen-Shannon divergence lies between forward KL (0) and reverse KL (1)
  (Agarwal et al. 2024, arXiv 2306.13649). The ends are other formulas, with losses of another size: a run that was
  given one of them (TRL's default is 1) has no such knob, and one between them never reaches them.

All are read from the trainer at every loss (TRL 1.16), and announced only where what they refer to is loaded.
"""

from __future__ import annotations

from typing import Any

from oven_learner.actuators import Actuators
from oven_learner.hf.knobs.user_values import UserValues, is_a

OF = {
    "RLOOTrainer": ("rloo.beta", "× KL per completion, in the reward"),
    "DPOTrainer": ("dpo.beta", "× log-ratio to the reference, in the loss"),
}


def announce(trainer: Any, actuators: Actuators, own: UserValues, bounds: tuple[float, float]) -> None:
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
