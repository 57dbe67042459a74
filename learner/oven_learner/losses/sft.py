"""Supervised fine-tuning during GRPO: a loss term for the likelihood of the dataset's reference completions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from oven_core.errors import ConfigError
from oven_learner.losses.channel import Channel, Generated, Tally
from oven_learner.losses.completion_logits import completion_logits, padded

CARRIED = "oven_reference"
"""Key in TRL's batch for each row's reference, a text or None."""
IGNORED = -100  # cross_entropy's default ignore_index


class Supervised(Channel):
    """Negative log-likelihood per token, at temperature 1, of the text in `column` after the row's prompt, including
    its end-of-sequence token. Rows with the same prompt are scored once and counted as often as they occur.

    A reference is a text, or a conversation of one assistant message. Rows with a reference of None or "" do not count.
    Groups that a committee skips in the policy loss do count, because references need no score. Raises ConfigError at
    once if the dataset has no such column or it has another type.
    """

    name = "sft"
    unit = "nats per token of the reference"

    def __init__(self, weight: float = 0.0, *, column: str = "reference", maximum: float = 1.0) -> None:
        super().__init__(weight, maximum=maximum)
        self.column = column

    def bind(self, trainer: Any) -> None:
        """Check the trainer's dataset. Raises ConfigError if it has no such column of texts."""
        super().bind(trainer)
        if trainer.args.remove_unused_columns:
            raise ConfigError(
                f"channel.sft: remove_unused_columns=True drops the column {self.column!r}; set it to False"
            )
        names = trainer.train_dataset.column_names  # None: a stream with unknown columns
        if names is not None and self.column not in names:
            raise ConfigError(
                f"channel.sft: the dataset has no column {self.column!r}, it has {', '.join(names)}; name the "
                "column with reference completions, Supervised(column=...)"
            )
        for row in trainer.train_dataset.take(1) if names is None else trainer.train_dataset.select(range(1)):
            self._text(row)

    def columns(self, generated: Generated) -> dict[str, Any]:
        """Return the reference of each row, a text or None."""
        return {CARRIED: [self._text(row) for row in generated.rows]}

    def tally(self, model: Any, inputs: dict[str, Any]) -> Tally:
        """Return the negative log-likelihood summed over the references' tokens, and their number."""
        trainer, device = self._trainer, inputs["prompt_ids"].device
        first: dict[tuple[str, tuple[int, ...]], int] = {}
        times: Counter[int] = Counter()  # row → number of equal rows
        for row, (text, prompt) in enumerate(zip(inputs[CARRIED], inputs["prompt_ids"].tolist(), strict=True)):
            if text:
                times[first.setdefault((text, tuple(prompt)), row)] += 1
        if not times:
            return Tally(torch.zeros((), device=device), torch.zeros((), device=device))
        rows = torch.tensor(list(times), device=device)  # (b,), b <= B
        words = trainer.processing_class
        texts = [words.encode(inputs[CARRIED][row], add_special_tokens=False) for row in times]
        ids, mask = padded([[*text, words.eos_token_id] for text in texts], device)  # (b, C) each
        prompt = inputs["prompt_ids"][rows], inputs["prompt_mask"][rows]
        logits = completion_logits(trainer, model, prompt, (ids, mask))  # (b, C, V)
        labels = ids.masked_fill(mask == 0, IGNORED)
        missed = cross_entropy(logits.float().flatten(0, 1), labels.flatten(), reduction="none").view(ids.shape)
        counts = torch.tensor(list(times.values()), device=device).unsqueeze(1)  # (b, 1)
        return Tally((missed * counts).sum(), (mask * counts).sum())

    def _text(self, row: Mapping[str, Any]) -> str | None:
        if self.column not in row:
            raise ConfigError(f"channel.sft: a row has no column {self.column!r}, it has {', '.join(row)}")
        reference = row[self.column]
        if isinstance(reference, list) and len(reference) == 1 and isinstance(reference[0], Mapping):
            reference = reference[0].get("content")
        if reference is None or isinstance(reference, str):
            return reference
        raise ConfigError(
            f"channel.sft: column {self.column!r} is a {type(reference).__name__}; "
            "expected a text or one assistant message"
        )
