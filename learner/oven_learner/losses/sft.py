"""The channel `channel.sft`, which adds supervised fine-tuning on the dataset's reference completions to GRPO."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from oven_core.errors import ConfigError
from oven_learner.losses.completion_logits import completion_logits, pad_rows
from oven_learner.losses.loss_channel import Channel, Rollouts, TermSum

REFERENCES = "oven_reference"
"""Key in TRL's batch for each row's reference completion, a string or None."""
IGNORED = -100  # cross_entropy's default ignore_index


class Supervised(Channel):
    """Negative log-likelihood per token, at temperature 1, of the text in `column` after the row's prompt, including
    its end-of-sequence token. Equal rows are scored once and counted as often as they occur. A reference is a string,
    or a conversation of one assistant message. Rows with a reference of None or "" do not count. Groups that a
    committee skips in the policy loss do count, because references need no score. `bind` raises ConfigError if the
    dataset has no such column or the column contains anything else."""

    name = "sft"
    unit = "nats per token of the reference"

    def __init__(self, weight: float = 0.0, *, column: str = "reference", maximum: float = 1.0) -> None:
        super().__init__(weight, maximum=maximum)
        self.column = column

    def bind(self, trainer: Any) -> None:
        """Check the trainer's dataset. Raises ConfigError if the reference column is missing or is not text."""
        super().bind(trainer)
        if trainer.args.remove_unused_columns:
            raise ConfigError(
                f"channel.sft: remove_unused_columns=True drops the column {self.column!r}; set "
                "remove_unused_columns=False"
            )
        names = trainer.train_dataset.column_names  # None for a stream with unknown columns
        if names is not None and self.column not in names:
            raise ConfigError(
                f"channel.sft: the dataset has no column {self.column!r}, only {', '.join(names)}; name the column of "
                "reference completions, Supervised(column=...)"
            )
        for row in trainer.train_dataset.take(1) if names is None else trainer.train_dataset.select(range(1)):
            self._read_reference(row)

    def columns(self, rollouts: Rollouts) -> dict[str, Any]:
        """Return the reference of each row, a string or None."""
        return {REFERENCES: [self._read_reference(row) for row in rollouts.rows]}

    def tally(self, model: Any, inputs: dict[str, Any]) -> TermSum:
        """Return the negative log-likelihood summed over the tokens of the references, and the number of tokens."""
        trainer, device = self._trainer, inputs["prompt_ids"].device
        first_rows: dict[tuple[str, tuple[int, ...]], int] = {}  # (reference, prompt) → the first row with both
        counts_by_row: Counter[int] = Counter()  # first row → number of rows that are equal to it, itself included
        for row, (text, prompt) in enumerate(zip(inputs[REFERENCES], inputs["prompt_ids"].tolist(), strict=True)):
            if text:
                first_row = first_rows.setdefault((text, tuple(prompt)), row)
                counts_by_row[first_row] += 1
        if not counts_by_row:
            return TermSum(torch.zeros((), device=device), torch.zeros((), device=device))
        rows = torch.tensor(list(counts_by_row), device=device)  # (b,), b <= B
        tokenizer = trainer.processing_class
        token_ids = [tokenizer.encode(inputs[REFERENCES][row], add_special_tokens=False) for row in counts_by_row]
        ids, mask = pad_rows([[*row_ids, tokenizer.eos_token_id] for row_ids in token_ids], device)  # (b, C) each
        prompt = inputs["prompt_ids"][rows], inputs["prompt_mask"][rows]
        logits = completion_logits(trainer, model, prompt, (ids, mask))  # (b, C, V)
        labels = ids.masked_fill(mask == 0, IGNORED)
        nats = cross_entropy(logits.float().flatten(0, 1), labels.flatten(), reduction="none").view(ids.shape)
        counts = torch.tensor(list(counts_by_row.values()), device=device).unsqueeze(1)  # (b, 1)
        return TermSum((nats * counts).sum(), (mask * counts).sum())

    def _read_reference(self, row: Mapping[str, Any]) -> str | None:
        if self.column not in row:
            raise ConfigError(f"channel.sft: a row has no column {self.column!r}, only {', '.join(row)}")
        reference = row[self.column]
        if isinstance(reference, list) and len(reference) == 1 and isinstance(reference[0], Mapping):
            reference = reference[0].get("content")
        if reference is None or isinstance(reference, str):
            return reference
        raise ConfigError(
            f"channel.sft: column {self.column!r} has a {type(reference).__name__}; expected a string or one assistant "
            "message"
        )
