"""The channel `channel.distill`, which pulls the policy towards a teacher on the policy's own completions.

The loss is the generalized Jensen-Shannon divergence. For a teacher with another tokenizer it is Universal Logit
Distillation (Boizard et al. 2024, arXiv 2402.12030), as implemented by TRL's `trl.experimental.gold`. Completions
are split into pieces where both tokenizers end a token. Within a piece, token probabilities are multiplied. Tokens in
both vocabularies are compared by divergence, and all others by the L1 distance of the sorted probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, chain
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import kl_div

from oven_core.errors import ConfigError, TeacherRefusedError, reason
from oven_learner import trainer_internals
from oven_learner.losses.completion_logits import compute_logits, pad_rows
from oven_learner.losses.loss_channel import Channel, Rollouts, TermSum
from oven_learner.teachers import teacher_checks
from oven_learner.teachers.placement import choose_form, load_model, load_tokenizer, place_model, prepare_for_trainer
from oven_learner.teachers.reference_model import has_reference, open_reference
from oven_learner.teachers.registry import LIMIT_BYTES
from oven_learner.teachers.teacher_config import TeacherConfig

IGNORED = -100
"""Label of tokens that TRL's ULDLoss does not score."""
PROMPTS = "oven_prompt"
"""Key in TRL's batch for the prompts, as the policy received them."""


def generalized_jsd(student: Tensor, teacher: Tensor, beta: float, temperature: float = 1.0) -> Tensor:
    """Return the divergence per token in nats, (...) float32, from logits (..., V), with the student's gradient. P is
    the teacher and Q the student, each a softmax of logits / temperature. The divergence is β·KL(P ‖ M) + (1 − β)·KL(Q
    ‖ M) with M = β·P + (1 − β)·Q (Agarwal et al. 2024, arXiv 2306.13649, eq. 1). It vanishes at β = 0 and 1, so the
    function returns its rescaled limits there. β = 0 is the forward KL(P ‖ Q). β = 1 is the reverse KL(Q ‖ P), which
    seeks a mode of the teacher (Gu et al. 2024, arXiv 2306.08543)."""
    log_q = _log_probabilities(student, temperature)
    log_p = _log_probabilities(teacher, temperature)
    if beta == 0:
        return _kl(log_p, log_q)
    if beta == 1:
        return _kl(log_q, log_p)
    log_m = torch.logaddexp(log_p + math.log(beta), log_q + math.log1p(-beta))
    return beta * _kl(log_p, log_m) + (1 - beta) * _kl(log_q, log_m)


def _log_probabilities(logits: Tensor, temperature: float) -> Tensor:
    """Return log-probabilities without infinities. Models may mask unused tokens with -inf, and 0·∞ is NaN."""
    return (logits.float() / temperature).log_softmax(-1).clamp(min=torch.finfo(torch.float32).min)


def _kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return KL(P ‖ Q) over the last dimension."""
    return kl_div(log_q, log_p, reduction="none", log_target=True).sum(-1)


class Distillation(Channel):
    """Generalized JSD per token between policy and teacher, over the whole vocabulary, on the policy's own completions
    (Agarwal et al. 2024, arXiv 2306.13649, algorithm 1 with λ = 1). The default `beta` of 1 is the reverse KL. This is
    MiniLLM's objective (Gu et al. 2024, arXiv 2306.08543, eq. 1) without its gradient through the sampling.

    The teacher is the one selected by `teacher.active` (oven_learner.teachers), or the policy without its adapter.
    GRPO's own β may be 0. Unlike the KL term, this channel runs the teacher in every loss, so a swap takes effect at
    once. If the teacher's vocabulary has more rows, its probabilities are normalised over the policy's rows.

    `temperature` softens both distributions. None means the trainer's sampling temperature. Prompts, padding and tool
    output do not count. Raises ConfigError for a β outside [0, 1] or a temperature that is not above 0.

    Pass `teacher` (a model, or a TeacherConfig) and `tokenizer` for a fixed teacher, whose tokenizer may differ from
    the policy's. The default `beta` is then 0.5. The trainer's constructor loads and checks the teacher, and raises
    TeacherRefusedError for an unsuitable one. `limit_bytes` is its maximum size.
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
            raise ConfigError(
                f"channel.distill: temperature {temperature:g} is invalid; expected a finite number above 0"
            )
        if tokenizer is not None and teacher is None:
            raise ConfigError("channel.distill: tokenizer= was passed without teacher=; pass both, or neither")
        if teacher is not None and beta in (0, 1):
            raise ConfigError(
                f"channel.distill: beta {beta:g} does not work with a teacher's own tokenizer; when tokens are merged, "
                "only a beta between 0 and 1 has its minimum at the teacher's probabilities; use 0.5, for example"
            )
        self.beta, self._temperature = beta, temperature
        self._teacher_arguments, self._limit = (teacher, tokenizer), limit_bytes
        self._teacher: Any = None
        self._cross_tokenizer: CrossTokenizer | None = None
        if teacher is not None:
            self.unit = "distance of probabilities per token, policy to teacher"

    def bind(self, trainer: Any) -> None:
        """Load and check the channel's own teacher, if it has one. Raises TeacherRefusedError if it is unsuitable.
        Raises ConfigError if prompts are conversations and its tokenizer has no chat template."""
        super().bind(trainer)
        teacher, tokenizer = self._teacher_arguments
        if teacher is None:
            return
        self._teacher, tokenizer = _load_teacher(trainer, teacher, tokenizer, self._limit)
        self._teacher_arguments = None, None
        temperature = trainer.temperature if self._temperature is None else self._temperature
        self._cross_tokenizer = CrossTokenizer(
            trainer.processing_class, tokenizer, self.beta, temperature, trainer.accelerator.device
        )
        first_row: dict[str, Any] = next(iter(trainer.train_dataset.take(1)), {})
        if not isinstance(first_row.get("prompt"), str) and not self._cross_tokenizer.teacher.chat_template:
            raise ConfigError(
                "channel.distill: prompts are conversations, but the teacher's tokenizer has no chat template; use a "
                "teacher with one, or prompts that are strings"
            )

    def columns(self, rollouts: Rollouts) -> dict[str, Any]:
        """Return the raw prompts if the channel has its own teacher, or else nothing."""
        return {PROMPTS: list(rollouts.prompts)} if self._cross_tokenizer is not None else {}

    def check(self) -> None:
        """Raise ConfigError if there is no teacher."""
        if self._cross_tokenizer is None and not has_reference(self._trainer):
            raise ConfigError(
                "channel.distill has no teacher; add one with Teachers(trainer).add(name, model, tokenizer) and swap "
                "to it, or leave the weight at 0"
            )

    def tally(self, model: Any, inputs: dict[str, Any]) -> TermSum:
        """Return the divergence summed over the tokens of the completions, and the number of tokens."""
        trainer = self._trainer
        prompt = inputs["prompt_ids"], inputs["prompt_mask"]
        completion = inputs["completion_ids"], inputs["completion_mask"]
        mask = inputs["completion_mask"]  # (B, C)
        is_counted = (mask if "tool_mask" not in inputs else mask * inputs["tool_mask"]).bool()
        if self._cross_tokenizer is not None:
            student_logits = compute_logits(trainer, model, prompt, completion)
            return self._sum_distances(self._cross_tokenizer, student_logits, is_counted, inputs)
        with torch.no_grad(), open_reference(trainer) as teacher:
            teacher_logits = compute_logits(trainer, teacher, prompt, completion)[is_counted]  # (tokens, V or more)
        student_logits = compute_logits(trainer, model, prompt, completion)[is_counted]  # (tokens, V)
        temperature = trainer.temperature if self._temperature is None else self._temperature
        divergences = generalized_jsd(
            student_logits, teacher_logits[:, : student_logits.size(-1)], self.beta, temperature
        )
        return TermSum(divergences.sum(), is_counted.sum())

    def _sum_distances(
        self, cross_tokenizer: CrossTokenizer, student_logits: Tensor, is_counted: Tensor, inputs: dict[str, Any]
    ) -> TermSum:
        """Return the sum for the channel's own teacher. A completion adds its mean distance times its number of
        text tokens."""
        completions = []
        for row, (ids, mask) in enumerate(zip(inputs["completion_ids"].tolist(), is_counted.tolist(), strict=True)):
            counted_positions = [position for position, counts in enumerate(mask) if counts]
            text, text_indices, ends = cross_tokenizer.decode([ids[position] for position in counted_positions])
            tokens, teacher_ends = cross_tokenizer.tokenize(text)
            if text_indices and tokens:
                positions = [counted_positions[index] for index in text_indices]
                prompt = cross_tokenizer.tokenize_prompt(inputs[PROMPTS][row])
                completions.append(_Completion(row, positions, prompt, tokens, ends, teacher_ends))
        total = student_logits.sum() * 0.0  # has a gradient even if no completion contains text
        if not completions:
            return TermSum(total, is_counted.sum() * 0)
        device = student_logits.device
        teacher_prompts = pad_rows([completion.prompt for completion in completions], device, pad_left=True)
        teacher_tokens = pad_rows([completion.tokens for completion in completions], device)
        with torch.no_grad():
            # The logits have the shape (completions, T, W).
            teacher_logits = compute_logits(self._trainer, self._teacher, teacher_prompts, teacher_tokens)
        for index, completion in enumerate(completions):
            row, positions, tokens = completion.row, completion.positions, completion.tokens
            distance = cross_tokenizer.distance(
                student_logits[row, positions].float(),
                teacher_logits[index, : len(tokens)].float(),
                (inputs["completion_ids"][row, positions].tolist(), tokens),
                (completion.student_ends, completion.teacher_ends),
            )
            total = total + distance * len(positions)
        token_count = sum(len(completion.positions) for completion in completions)
        return TermSum(total, torch.tensor(token_count, device=device))


class _Completion(NamedTuple):
    """A completion in the tokens of both models. The ends of tokens are positions in its text, in UTF-8 bytes."""

    row: int
    positions: list[int]  # positions of the student's text tokens in the row
    prompt: list[int]  # the prompt in the teacher's tokens
    tokens: list[int]  # the completion in the teacher's tokens
    student_ends: list[int]
    teacher_ends: list[int]


@torch.no_grad()
def _load_teacher(trainer: Any, teacher: Any, tokenizer: Any, limit: int) -> tuple[Any, Any]:
    """Load and check a teacher, given as a TeacherConfig or a model, and return its model and tokenizer. The tokenizer
    may differ from the policy's. Raises TeacherRefusedError if the teacher is unsuitable."""
    accelerator = trainer.accelerator
    config = teacher if isinstance(teacher, TeacherConfig) else TeacherConfig(name="distill", model=teacher)
    if tokenizer is not None:
        config = config.model_copy(update={"tokenizer": tokenizer})
    form = choose_form(config, accelerator.device, limit)
    teacher_tokenizer = load_tokenizer(config)
    if teacher_tokenizer is None:
        raise TeacherRefusedError("its folder has no tokenizer; pass one with Distillation(teacher=…, tokenizer=…)")
    model = load_model(config, form, accelerator.device)
    teacher_checks.check_own_weights(accelerator.unwrap_model(trainer.model), model)
    teacher_checks.check_size(model, 0, limit, form)
    rows, last_id = teacher_checks.vocabulary_rows(model), max(teacher_tokenizer.get_vocab().values())
    if last_id >= rows:
        raise TeacherRefusedError(
            f"its tokenizer has ids up to {last_id:,}, but its vocabulary has {rows:,} rows; use its own tokenizer"
        )
    place_model(model, accelerator.device, form, None)
    prepared_model = prepare_for_trainer(model, accelerator, form)
    try:
        logits = prepared_model(input_ids=torch.tensor([[last_id, last_id]], device=accelerator.device)).logits
    except Exception as error:
        raise TeacherRefusedError(f"it failed on a probe of two tokens: {reason(error)}") from error
    if not bool(torch.isfinite(logits).all()):
        raise TeacherRefusedError("its logits for a probe of two tokens are not finite; check its weights")
    return prepared_model, teacher_tokenizer


class CrossTokenizer:
    """Computes the distance between two models with different tokenizers, for one completion at a time. Raises
    ConfigError for a teacher's tokenizer without token offsets."""

    def __init__(self, student: Any, teacher: Any, beta: float, temperature: float, device: torch.device) -> None:
        self.student, self.teacher = (getattr(tokenizer, "tokenizer", tokenizer) for tokenizer in (student, teacher))
        if not self.teacher.is_fast:
            raise ConfigError(
                f"channel.distill: the teacher's tokenizer, a {type(self.teacher).__name__}, has no token offsets; use "
                "a fast tokenizer, for example from AutoTokenizer.from_pretrained(…)"
            )
        shared_tokens = self.student.get_vocab().keys() & self.teacher.get_vocab().keys()
        uld_loss: Any = trainer_internals.gold_trainer().ULDLoss
        self._loss = uld_loss(
            SimpleNamespace(
                uld_crossentropy_weight=0.0,
                uld_distillation_weight=1.0,
                uld_student_temperature=temperature,
                uld_teacher_temperature=temperature,
                uld_skip_student_eos=False,  # the input is text without end tokens
                uld_skip_teacher_eos=False,
                use_extended_uld=True,
                uld_token_merge_strategy="bayesian",  # the last distribution of a piece, given its earlier tokens
                uld_use_hybrid_loss=bool(shared_tokens),
                uld_hybrid_matched_weight=None,
                uld_hybrid_unmatched_weight=None,
                beta=beta,
            ),
            student_tokenizer=self.student,
            teacher_tokenizer=self.teacher,
            device=device,
        )
        self._special_ids = set(self.student.all_special_ids)

    def decode(self, ids: Sequence[int]) -> tuple[str, list[int], list[int]]:
        """Return the text of the student's tokens, the indices of its text tokens, and their ends in UTF-8 bytes."""
        indices = [index for index, token in enumerate(ids) if token not in self._special_ids]
        tokens = [ids[index] for index in indices]
        text = self._decode_tokens(tokens)
        return text, indices, self._find_ends(tokens, text)

    def tokenize(self, text: str) -> tuple[list[int], list[int]]:
        """Return a completion's text in the teacher's tokens, and the end of each token in UTF-8 bytes."""
        encoded = self.teacher(text, add_special_tokens=False, return_offsets_mapping=True)
        return encoded["input_ids"], _byte_ends(text, encoded["offset_mapping"])

    def tokenize_prompt(self, prompt: Any) -> list[int]:
        """Return a prompt in the teacher's tokens. Conversations are rendered with the teacher's chat template."""
        if isinstance(prompt, str):
            ids = list(self.teacher(prompt)["input_ids"])
        else:
            text = self.teacher.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
            ids = list(self.teacher(text, add_special_tokens=False)["input_ids"])
        return ids[:-1] if ids and ids[-1] == self.teacher.eos_token_id else ids

    def distance(
        self, student: Tensor, teacher: Tensor, tokens: tuple[Sequence[int], Sequence[int]], ends: tuple[Any, Any]
    ) -> Tensor:
        """Return the mean loss over the pieces of one completion. `student` and `teacher` are the logits that predict
        its tokens, (S, V) and (T, W). `tokens` and `ends` are pairs for student and teacher, of lengths S and T."""
        (student_tokens, teacher_tokens), (student_ends, teacher_ends) = tokens, ends
        student_arguments = self._uld_arguments(student, student_tokens, student_ends)
        teacher_arguments = self._uld_arguments(teacher, teacher_tokens, teacher_ends)
        pairs = zip(student_arguments, teacher_arguments, strict=True)
        loss: Tensor = self._loss(*chain.from_iterable(pairs))  # the two models' arguments alternate
        return loss.squeeze()

    @staticmethod
    def _uld_arguments(logits: Tensor, tokens: Sequence[int], ends: Sequence[int]) -> tuple[Tensor, ...]:
        """Return ULDLoss's arguments (logits, labels, ids, spans) for one model, with a placeholder before the text."""
        ids = torch.tensor([[0, *tokens]], device=logits.device)  # (1, S + 1)
        labels = ids.clone()
        labels[0, 0] = IGNORED
        starts = [0, *ends[:-1]]
        spans = torch.tensor([[[0, 0], *zip(starts, ends, strict=True)]], device=logits.device)
        return torch.cat([logits, logits[-1:]])[None], labels, ids, spans

    def _decode_tokens(self, tokens: Sequence[int]) -> str:
        return str(self.student.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def _find_ends(self, tokens: Sequence[int], text: str) -> list[int]:
        """Return the ends of the tokens in bytes. Sampled tokens may differ from the tokenization of their text."""
        if not tokens:
            return []
        if self.student.is_fast:
            encoded = self.student(text, add_special_tokens=False, return_offsets_mapping=True)
            if encoded["input_ids"] == list(tokens):
                return _byte_ends(text, encoded["offset_mapping"])
        text_length = len(text.encode())
        lengths = (len(self._decode_tokens(tokens[:count]).encode()) for count in range(1, len(tokens)))
        # Part of a character decodes to a replacement character, which may be longer than the whole character.
        inner_ends = [min(text_length, length) for length in accumulate(lengths, max)]
        return [*inner_ends, text_length]


def _byte_ends(text: str, spans: Sequence[tuple[int, int]]) -> list[int]:
    """Return the ends of the spans, converted from characters to UTF-8 bytes."""
    offsets = [0, *accumulate(len(character.encode()) for character in text)]
    return [offsets[end] for _, end in spans]
