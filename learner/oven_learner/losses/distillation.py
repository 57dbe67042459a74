"""On-policy distillation: pulls the policy towards the active teacher's distribution on the policy's own completions,
by the generalized Jensen-Shannon divergence."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import kl_div

from oven_core.errors import ConfigError
from oven_learner.losses.channel import Channel, Tally
from oven_learner.losses.completion_logits import completion_logits, padded
from oven_learner.losses.cross_tokenizer import CrossTokenizer
from oven_learner.losses.generated import Generated
from oven_learner.teachers.channel_teacher import admit
from oven_learner.teachers.named_teachers import LIMIT_BYTES
from oven_learner.teachers.registry import has_reference, reference

PROMPTS = "oven_prompt"
"""Key in TRL's batch: each row's prompt, in the form that the policy received."""


def generalized_jsd(student: Tensor, teacher: Tensor, beta: float, temperature: float = 1.0) -> Tensor:
    """Return the divergence per token in nats, (...) float32, from logits (..., V), with the student's gradient.

    With P the teacher and Q the student, each a softmax of logits / temperature: β·KL(P ‖ M) + (1 − β)·KL(Q ‖ M), M =
    β·P + (1 − β)·Q (Agarwal et al. 2024, arXiv 2306.13649, eq. 1). At β = 0 and 1 this vanishes, so its rescaled limits
    are used: β = 0 is the forward KL(P ‖ Q). β = 1 is the reverse KL(Q ‖ P), which seeks a mode of the teacher (Gu et
    al. 2024, arXiv 2306.08543).
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
    """Return finite log-probabilities. Models may mask padded rows with -inf, and 0·∞ is NaN."""
    return (logits.float() / temperature).log_softmax(-1).clamp(min=torch.finfo(torch.float32).min)


def _kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return KL(P ‖ Q) over the last dimension."""
    return kl_div(log_q, log_p, reduction="none", log_target=True).sum(-1)


class Distillation(Channel):
    """Generalized JSD per token between policy and teacher, over the whole vocabulary, on the policy's own completions
    (Agarwal et al. 2024, arXiv 2306.13649, eq. 1 and algorithm 1 with λ = 1). The default `beta` of 1 is the reverse
    KL: MiniLLM's objective (Gu et al. 2024, arXiv 2306.08543, eq. 1) without its gradient through the sampling.

    The teacher is the active one of `teacher.active` (oven_learner.teachers), or the policy without its adapter. GRPO's
    own β may be 0. Unlike the KL term, this channel runs the teacher in every loss, so that a swap takes effect at
    once. If the teacher's vocabulary has more rows than the policy's, it is normalised over the policy's.

    `temperature` softens both distributions; None means the trainer's sampling temperature. Prompts, padding and tool
    output do not count. Raises ConfigError for a β outside [0, 1] or a temperature that is not above 0.

    `teacher` (a model, or a TeacherConfig) and its `tokenizer` fix the teacher, independent of `teacher.active`. Its
    tokenizer may differ from the policy's. The term is then Universal Logit Distillation
    (oven_learner.losses.cross_tokenizer), with a default `beta` of 0.5. The trainer's constructor loads and checks the
    teacher, and raises TeacherRefusedError. `limit_bytes` limits its size.
    """

    name = "distill"
    unit = "nats per token, policy to teacher"

    def __init__(
        self,
        weight: float = 0.0,
        *,
        maximum: float = 1.0,
        beta: float | None = None,
        temperature: float | None = None,
        teacher: Any = None,
        tokenizer: Any = None,
        limit_bytes: int = LIMIT_BYTES,
    ) -> None:
        super().__init__(weight, maximum=maximum)
        if beta is None:
            beta = 1.0 if teacher is None else 0.5
        if not 0 <= beta <= 1:
            raise ConfigError(f"channel.distill: beta {beta:g} is outside [0, 1]; 0 is the forward KL, 1 the reverse")
        if temperature is not None and not (math.isfinite(temperature) and temperature > 0):
            raise ConfigError(f"channel.distill: temperature {temperature:g}; give a finite one above 0")
        if tokenizer is not None and teacher is None:
            raise ConfigError("channel.distill: tokenizer= needs its teacher; give both teacher=… and tokenizer=…")
        if teacher is not None and beta in (0, 1):
            raise ConfigError(
                f"channel.distill: beta {beta:g} with a teacher's own tokenizer: when tokens are merged, only a beta "
                "between 0 and 1 has its minimum at the teacher's probabilities; use e.g. 0.5"
            )
        self.beta, self._temperature = beta, temperature
        self._teacher_arguments, self._limit = (teacher, tokenizer), limit_bytes
        self._teacher: Any = None
        self._across: CrossTokenizer | None = None
        if teacher is not None:
            self.unit = "distance of probabilities per token, policy to teacher"

    def bind(self, trainer: Any) -> None:
        """Load and check the channel's own teacher. Raises TeacherRefusedError, and ConfigError if prompts are
        conversations and its tokenizer has no chat template."""
        super().bind(trainer)
        if self._teacher_arguments[0] is None:
            return
        self._teacher, tokenizer = admit(trainer, *self._teacher_arguments, self._limit)
        self._teacher_arguments = None, None
        temperature = trainer.temperature if self._temperature is None else self._temperature
        self._across = CrossTokenizer(
            trainer.processing_class,
            tokenizer,
            beta=self.beta,
            temperature=temperature,
            device=trainer.accelerator.device,
        )
        first: dict[str, Any] = next(iter(trainer.train_dataset.take(1)), {})
        if not isinstance(first.get("prompt"), str) and not self._across.teacher.chat_template:
            raise ConfigError("channel.distill: prompts are conversations, and the teacher's tokenizer has no template")

    def columns(self, generated: Generated) -> dict[str, Any]:
        """Return the raw prompts for a teacher with another tokenizer."""
        return {PROMPTS: list(generated.prompts)} if self._across is not None else {}

    def check(self) -> None:
        """Raise ConfigError if there is no teacher."""
        if self._across is None and not has_reference(self._trainer):
            raise ConfigError(
                "channel.distill has no teacher: add one, Teachers(trainer).add(name, model, tokenizer), swap to it, "
                "or leave the weight at 0"
            )

    def tally(self, model: Any, inputs: dict[str, Any]) -> Tally:
        """Return the divergence summed over the completions' tokens, and their number."""
        trainer = self._trainer
        prompt = inputs["prompt_ids"], inputs["prompt_mask"]
        completion = inputs["completion_ids"], inputs["completion_mask"]
        mask = completion[1] if "tool_mask" not in inputs else completion[1] * inputs["tool_mask"]  # (B, C)
        counted = mask.bool()
        if self._across is not None:
            return self._tally_across(
                self._across, completion_logits(trainer, model, prompt, completion), counted, inputs
            )
        with torch.no_grad(), reference(trainer) as teacher:
            teacher_logits = completion_logits(trainer, teacher, prompt, completion)[counted]  # (tokens, V or more)
        student_logits = completion_logits(trainer, model, prompt, completion)[counted]  # (tokens, V)
        temperature = trainer.temperature if self._temperature is None else self._temperature
        apart = generalized_jsd(student_logits, teacher_logits[:, : student_logits.size(-1)], self.beta, temperature)
        return Tally(apart.sum(), counted.sum())

    def _tally_across(
        self, across: CrossTokenizer, student_logits: Tensor, counted: Tensor, inputs: dict[str, Any]
    ) -> Tally:
        """Return the tally for a teacher with another tokenizer. A completion's mean is weighted by its text tokens."""
        entries = []  # per row with text: row, token positions, teacher's prompt and tokens, both ends
        for row, (ids, mask) in enumerate(zip(inputs["completion_ids"].tolist(), counted.tolist(), strict=True)):
            indices = [position for position, counts in enumerate(mask) if counts]
            text, text_positions, ends = across.text([ids[position] for position in indices])
            tokens, teacher_ends = across.read(text)
            if text_positions and tokens:
                own = [indices[position] for position in text_positions]
                entries.append((row, own, across.prompt(inputs[PROMPTS][row]), tokens, ends, teacher_ends))
        total = student_logits.sum() * 0.0
        if not entries:
            return Tally(total, counted.sum() * 0)
        device = student_logits.device
        prompt = padded([entry[2] for entry in entries], device, pad_left=True)
        completion = padded([entry[3] for entry in entries], device)
        with torch.no_grad():
            teacher_logits = completion_logits(self._trainer, self._teacher, prompt, completion)  # (rows, T, W)
        for index, (row, own, _, tokens, ends, teacher_ends) in enumerate(entries):
            ids = inputs["completion_ids"][row, own].tolist()
            distance = across.distance(
                student_logits[row, own].float(),
                teacher_logits[index, : len(tokens)].float(),
                (ids, tokens),
                (ends, teacher_ends),
            )
            total = total + distance * len(own)
        return Tally(total, torch.tensor(sum(len(entry[1]) for entry in entries), device=device))
