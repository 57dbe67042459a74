"""Logit distillation from a teacher with another tokenizer: Universal Logit Distillation (Boizard et al. 2024, arXiv
2402.12030), using TRL 1.16's `trl.experimental.gold`.

The text of a completion is cut where both tokenizers end a token. Within such a piece, token probabilities are
multiplied. Tokens in both vocabularies are compared by divergence, and the others by the L1 distance of the sorted
probabilities.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from oven_core.errors import ConfigError

IGNORED = -100
"""ULDLoss's label for tokens that are not scored."""


class CrossTokenizer:
    """Measures the distance between two models with different tokenizers, one completion at a time.

    Raises ConfigError for a tokenizer without token offsets.
    """

    def __init__(self, student: Any, teacher: Any, *, beta: float, temperature: float, device: torch.device) -> None:
        self.student, self.teacher = (getattr(tokenizer, "tokenizer", tokenizer) for tokenizer in (student, teacher))
        if not self.teacher.is_fast:
            raise ConfigError(
                f"channel.distill: the teacher's tokenizer is a {type(self.teacher).__name__}, which has no token "
                "offsets; use a fast tokenizer, AutoTokenizer.from_pretrained(…)"
            )
        gold = _gold()
        shared = self.student.get_vocab().keys() & self.teacher.get_vocab().keys()
        self._loss = gold.ULDLoss(
            SimpleNamespace(
                uld_crossentropy_weight=0.0,
                uld_distillation_weight=1.0,
                uld_student_temperature=temperature,
                uld_teacher_temperature=temperature,
                uld_skip_student_eos=False,  # only text is passed
                uld_skip_teacher_eos=False,
                use_extended_uld=True,
                uld_token_merge_strategy="bayesian",  # the piece's last distribution, given its first tokens
                uld_use_hybrid_loss=bool(shared),
                uld_hybrid_matched_weight=None,
                uld_hybrid_unmatched_weight=None,
                beta=beta,
            ),
            student_tokenizer=self.student,
            teacher_tokenizer=self.teacher,
            device=device,
        )
        self._special = set(self.student.all_special_ids)

    def text(self, ids: Sequence[int]) -> tuple[str, list[int], list[int]]:
        """Return the student's text, the indices of its text tokens, and each one's end in bytes of UTF-8."""
        positions = [position for position, token in enumerate(ids) if token not in self._special]
        tokens = [ids[position] for position in positions]
        text = self._decoded(tokens)
        return text, positions, self._ends(tokens, text)

    def read(self, text: str) -> tuple[list[int], list[int]]:
        """Return the teacher's tokens of a completion's text, and each one's end in bytes of UTF-8."""
        encoded = self.teacher(text, add_special_tokens=False, return_offsets_mapping=True)
        return encoded["input_ids"], _byte_ends(text, encoded["offset_mapping"])

    def prompt(self, prompt: Any) -> list[int]:
        """Return the teacher's tokens of a prompt. A conversation is rendered with the teacher's chat template."""
        if isinstance(prompt, str):
            ids = list(self.teacher(prompt)["input_ids"])
        else:
            text = self.teacher.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
            ids = list(self.teacher(text, add_special_tokens=False)["input_ids"])
        return ids[:-1] if ids and ids[-1] == self.teacher.eos_token_id else ids

    def distance(
        self, student: Tensor, teacher: Tensor, tokens: tuple[Sequence[int], Sequence[int]], ends: tuple[Any, Any]
    ) -> Tensor:
        """Return the loss of one completion, a mean over its pieces.

        `student` and `teacher` are the logits that predict its tokens, (S, V) and (T, W). `tokens` and `ends` have
        lengths S and T.
        """
        logits, labels, ids, offsets = zip(
            *(self._row(*side) for side in zip((student, teacher), tokens, ends, strict=True)), strict=True
        )
        loss: Tensor = self._loss(*logits, *labels, *ids, *offsets)
        return loss.squeeze()

    @staticmethod
    def _row(logits: Tensor, tokens: Sequence[int], ends: Sequence[int]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return a batch of one, with a placeholder token before the text."""
        ids = torch.tensor([[0, *tokens]], device=logits.device)  # (1, S + 1)
        labels = ids.clone()
        labels[0, 0] = IGNORED
        spans = torch.tensor([[[0, 0], *zip([0, *ends[:-1]], ends, strict=True)]], device=logits.device)
        return torch.cat([logits, logits[-1:]])[None], labels, ids, spans

    def _decoded(self, tokens: Sequence[int]) -> str:
        return str(self.student.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def _ends(self, tokens: Sequence[int], text: str) -> list[int]:
        """Return byte ends. Sampled tokens may differ from the tokenization of their text."""
        if self.student.is_fast:
            again = self.student(text, add_special_tokens=False, return_offsets_mapping=True)
            if again["input_ids"] == list(tokens):
                return _byte_ends(text, again["offset_mapping"])
        whole = len(text.encode())
        lengths = [len(self._decoded(tokens[:count]).encode()) for count in range(1, len(tokens))]
        ends: list[int] = []
        for length in lengths:  # half a character decodes to a replacement character that is longer
            ends.append(min(whole, max(length, ends[-1] if ends else 0)))
        return [*ends, whole] if tokens else []


def _byte_ends(text: str, spans: Sequence[tuple[int, int]]) -> list[int]:
    """Convert ends in characters to ends in bytes."""
    offsets = [0]
    for character in text:
        offsets.append(offsets[-1] + len(character.encode()))
    return [offsets[end] for _, end in spans]


def _gold() -> Any:
    with warnings.catch_warnings():
        # Experimental API: trl's minor version is pinned.
        warnings.simplefilter("ignore")
        from trl.experimental import gold

        return gold.gold_trainer
