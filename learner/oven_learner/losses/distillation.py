"""On-policy distillation: the policy is pulled towards the active teacher's distribution on its own completions, by the
generalized Jensen-Shannon divergence."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import kl_div

from oven_controller.errors import ConfigError
from oven_learner.losses.channel import Channel
from oven_learner.losses.completion_logits import completion_logits
from oven_learner.teachers.registry import has_reference, reference


def generalized_jsd(student: Tensor, teacher: Tensor, beta: float, temperature: float = 1.0) -> Tensor:
    """Per token, in nats, from logits (..., V); the result is (...), float32, with the student's gradient.

    With P the teacher and Q the student, each a softmax of logits / temperature:
    β·KL(P ‖ M) + (1 − β)·KL(Q ‖ M), M = β·P + (1 − β)·Q (Agarwal et al. 2024, arXiv 2306.13649, eq. 1). At the ends,
    where that vanishes, the KL that it tends to when it is rescaled: β = 0 is the forward KL(P ‖ Q), β = 1 the reverse
    KL(Q ‖ P), which seeks a mode of the teacher (Gu et al. 2024, arXiv 2306.08543).
    """
    log_q = _log_probabilities(student, temperature)
    log_p = _log_probabilities(teacher, temperature)
    if beta == 0:
        return _kl(log_p, log_q)
    if beta == 1:
        return _kl(log_q, log_p)
    log_m = torch.logaddexp(log_p + math.log(beta), log_q + math.log1p(-beta))
    return beta * _kl(log_p, log_m) + (1 - beta) * _kl(log_q, log_m)


def _log_probabilities(logits: Tensor, temperature: float) -> Tensor:
    """Never -inf: a model that masks padded rows gives them no probability, and 0·∞ is not a number."""
    return (logits.float() / temperature).log_softmax(-1).clamp(min=torch.finfo(torch.float32).min)


def _kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(P ‖ Q) over the last dimension."""
    return kl_div(log_q, log_p, reduction="none", log_target=True).sum(-1)


class Distillation(Channel):
    """Generalized JSD per token between policy and teacher, over the whole vocabulary, on the policy's own completions
    (Agarwal et al. 2024, arXiv 2306.13649, eq. 1 and algorithm 1 with λ = 1). `beta` 1, the default, is the reverse KL:
    MiniLLM's objective (Gu et al. 2024, arXiv 2306.08543, eq. 1) without its gradient through the sampling.

    The teacher is the one that `teacher.active` names (oven_learner.teachers), or the policy without its adapter;
    GRPO's own β may be 0. The KL term takes the teacher's log-probabilities when completions are made; here the teacher
    is asked in every loss, so that a swap acts at once. Where it has more rows than the policy's vocabulary, it is
    normalised over the policy's.

    `temperature` softens both; None: the trainer's own, at which completions are sampled. Prompts, padding and tools'
    output do not count. Raises ConfigError for a β outside [0, 1] or a temperature that is not above 0.
    """

    name = "distill"
    unit = "nats per token, policy to teacher"

    def __init__(
        self, weight: float = 0.0, *, maximum: float = 1.0, beta: float = 1.0, temperature: float | None = None
    ) -> None:
        super().__init__(weight, maximum=maximum)
        if not 0 <= beta <= 1:
            raise ConfigError(f"channel.distill: beta {beta:g} is outside [0, 1]; 0 is the forward KL, 1 the reverse")
        if temperature is not None and not (math.isfinite(temperature) and temperature > 0):
            raise ConfigError(f"channel.distill: temperature {temperature:g}; give a finite one above 0")
        self.beta, self._temperature = beta, temperature

    def check(self) -> None:
        """Raises ConfigError where there is no teacher."""
        if not has_reference(self._trainer):
            raise ConfigError(
                "channel.distill has no teacher: add one, Teachers(trainer).add(name, model, tokenizer), swap to it, "
                "or leave the weight at 0"
            )

    def tally(self, model: Any, inputs: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """The divergence summed over the completions' tokens, and their number."""
        trainer = self._trainer
        prompt = inputs["prompt_ids"], inputs["prompt_mask"]
        completion = inputs["completion_ids"], inputs["completion_mask"]
        mask = completion[1] if "tool_mask" not in inputs else completion[1] * inputs["tool_mask"]  # (B, C)
        kept = mask.bool()
        with torch.no_grad(), reference(trainer) as teacher:
            wanted = completion_logits(trainer, teacher, prompt, completion)[kept]  # (tokens, V or more)
        found = completion_logits(trainer, model, prompt, completion)[kept]  # (tokens, V)
        temperature = trainer.temperature if self._temperature is None else self._temperature
        apart = generalized_jsd(found, wanted[:, : found.size(-1)], self.beta, temperature)
        return apart.sum(), kept.sum()
