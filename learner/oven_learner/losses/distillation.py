"""On-policy distillation: the policy is pulled towards the active teacher's distribution on its own completions, by the
generalized Jensen-Shannon divergence."""

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
"""In TRL's batch: the prompt of each row, as the policy was given it."""


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

    With `teacher` (a model, or a TeacherConfig) and its `tokenizer` that one teaches, whatever `teacher.active` says,
    and its tokenizer may be another than the policy's: the term is Universal Logit Distillation
    (oven_learner.losses.cross_tokenizer), with a `beta` of .5 unless another is given. The teacher is loaded and
    checked when the trainer is made, which raises TeacherRefusedError; `limit_bytes` bounds it.
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
            raise ConfigError("channel.distill: a tokenizer without its teacher; give both, teacher=… and tokenizer=…")
        if teacher is not None and beta in (0, 1):
            raise ConfigError(
                f"channel.distill: beta {beta:g} with a teacher's tokenizer: where several tokens are compared as one, "
                "only a beta between 0 and 1 has its least value at the teacher's probabilities; give e.g. 0.5"
            )
        self.beta, self._temperature = beta, temperature
        self._given, self._limit = (teacher, tokenizer), limit_bytes
        self._teacher: Any = None
        self._across: CrossTokenizer | None = None
        if teacher is not None:
            self.unit = "distance of probabilities per token, policy to teacher"

    def bind(self, trainer: Any) -> None:
        """Loads and checks the teacher that was given. Raises TeacherRefusedError, and ConfigError where prompts are
        conversations and its tokenizer has no template for them."""
        super().bind(trainer)
        if self._given[0] is None:
            return
        self._teacher, words = admit(trainer, *self._given, self._limit)
        self._given = None, None
        temperature = trainer.temperature if self._temperature is None else self._temperature
        self._across = CrossTokenizer(
            trainer.processing_class,
            words,
            beta=self.beta,
            temperature=temperature,
            device=trainer.accelerator.device,
        )
        first: dict[str, Any] = next(iter(trainer.train_dataset.take(1)), {})
        if not isinstance(first.get("prompt"), str) and not self._across.teacher.chat_template:
            raise ConfigError("channel.distill: prompts are conversations, and the teacher's tokenizer has no template")

    def columns(self, generated: Generated) -> dict[str, Any]:
        """The prompts as they are, for a teacher that reads them with another tokenizer."""
        return {PROMPTS: list(generated.prompts)} if self._across is not None else {}

    def check(self) -> None:
        """Raises ConfigError where there is no teacher."""
        if self._across is None and not has_reference(self._trainer):
            raise ConfigError(
                "channel.distill has no teacher: add one, Teachers(trainer).add(name, model, tokenizer), swap to it, "
                "or leave the weight at 0"
            )

    def tally(self, model: Any, inputs: dict[str, Any]) -> Tally:
        """The divergence summed over the completions' tokens, and their number."""
        trainer = self._trainer
        prompt = inputs["prompt_ids"], inputs["prompt_mask"]
        completion = inputs["completion_ids"], inputs["completion_mask"]
        mask = completion[1] if "tool_mask" not in inputs else completion[1] * inputs["tool_mask"]  # (B, C)
        kept = mask.bool()
        if self._across is not None:
            return self._tally_across(self._across, completion_logits(trainer, model, prompt, completion), kept, inputs)
        with torch.no_grad(), reference(trainer) as teacher:
            wanted = completion_logits(trainer, teacher, prompt, completion)[kept]  # (tokens, V or more)
        found = completion_logits(trainer, model, prompt, completion)[kept]  # (tokens, V)
        temperature = trainer.temperature if self._temperature is None else self._temperature
        apart = generalized_jsd(found, wanted[:, : found.size(-1)], self.beta, temperature)
        return Tally(apart.sum(), kept.sum())

    def _tally_across(self, across: CrossTokenizer, found: Tensor, kept: Tensor, inputs: dict[str, Any]) -> Tally:
        """The same by text. A completion's mean counts as often as it has tokens of text."""
        written = []  # of each row that has text: its place, the places of its tokens, the teacher's, and the ends
        for row, (ids, mask) in enumerate(zip(inputs["completion_ids"].tolist(), kept.tolist(), strict=True)):
            places = [place for place, counts in enumerate(mask) if counts]
            text, some, ends = across.text([ids[place] for place in places])
            tokens, teachers_ends = across.read(text)
            if some and tokens:
                own = [places[place] for place in some]
                written.append((row, own, across.prompt(inputs[PROMPTS][row]), tokens, ends, teachers_ends))
        total = found.sum() * 0.0
        if not written:
            return Tally(total, kept.sum() * 0)
        device = found.device
        prompt = padded([one[2] for one in written], device, left=True)
        completion = padded([one[3] for one in written], device)
        with torch.no_grad():
            wanted = completion_logits(self._trainer, self._teacher, prompt, completion)  # (rows, T, W)
        for place, (row, own, _, tokens, ends, teachers_ends) in enumerate(written):
            ids = inputs["completion_ids"][row, own].tolist()
            distance = across.distance(
                found[row, own].float(), wanted[place, : len(tokens)].float(), (ids, tokens), (ends, teachers_ends)
            )
            total = total + distance * len(own)
        return Tally(total, torch.tensor(sum(len(one[1]) for one in written), device=device))
