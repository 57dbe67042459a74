"""Supervised fine-tuning beside the policy loss: the likelihood of a reference completion from the dataset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from oven_core.errors import ConfigError
from oven_learner.losses.channel import Channel, Tally
from oven_learner.losses.completion_logits import completion_logits, padded
from oven_learner.losses.generated import Generated

CARRIED = "oven_reference"
"""In TRL's batch: the reference of each row, a list of B texts or None."""
IGNORED = -100  # cross_entropy's default ignore_index


class Supervised(Channel):
    """Negative log-likelihood per token, at temperature 1, of the text in `column` after the row's prompt, its end of
    sequence included; the same prompt's rows are scored once and counted as often as they are in the micro-batch.

    A reference is a text, or a conversation of one assistant message; rows whose reference is None or empty don't
    count. Groups that a committee leaves out of the policy loss count: no one need score what is given. Raises
    ConfigError at once for a dataset without the column, or one of another type.
    """

    name = "sft"
    unit = "nats per token of the reference"

    def __init__(self, weight: float = 0.0, *, column: str = "reference", maximum: float = 1.0) -> None:
        super().__init__(weight, maximum=maximum)
        self.column = column

    def bind(self, trainer: Any) -> None:
        """Looks at the trainer's dataset. Raises ConfigError where it has no such column of texts."""
        super().bind(trainer)
        if trainer.args.remove_unused_columns:
            raise ConfigError(
                f"channel.sft: remove_unused_columns=True drops the column {self.column!r}; leave it False"
            )
        names = trainer.train_dataset.column_names  # None: a stream that does not know
        if names is not None and self.column not in names:
            raise ConfigError(
                f"channel.sft: the dataset has no column {self.column!r}, it has {', '.join(names)}; name the one with "
                "the reference completions, Supervised(column=...)"
            )
        for row in trainer.train_dataset.take(1) if names is None else trainer.train_dataset.select(range(1)):
            self._text(row)

    def columns(self, generated: Generated) -> dict[str, Any]:
        """The reference of each row, a text or None."""
        return {CARRIED: [self._text(row) for row in generated.rows]}

    def tally(self, model: Any, inputs: dict[str, Any]) -> Tally:
        """The negative log-likelihood summed over the references' tokens, and their number."""
        trainer, device = self._trainer, inputs["prompt_ids"].device
        first: dict[tuple[str, tuple[int, ...]], int] = {}
        times: dict[int, int] = {}  # row → how many rows are the same
        for row, (text, prompt) in enumerate(zip(inputs[CARRIED], inputs["prompt_ids"].tolist(), strict=True)):
            if text:
                same = first.setdefault((text, tuple(prompt)), row)
                times[same] = times.get(same, 0) + 1
        if not times:
            return Tally(torch.zeros((), device=device), torch.zeros((), device=device))
        rows = torch.tensor(list(times), device=device)  # (b,), b <= B
        ids, mask = self._tokenized([inputs[CARRIED][row] for row in times], device)  # (b, C) each
        logits = completion_logits(
            trainer, model, (inputs["prompt_ids"][rows], inputs["prompt_mask"][rows]), (ids, mask)
        )  # (b, C, V)
        labels = ids.masked_fill(mask == 0, IGNORED)
        missed = cross_entropy(logits.float().flatten(0, 1), labels.flatten(), reduction="none").view(ids.shape)
        counts = torch.tensor(list(times.values()), device=device).unsqueeze(1)  # (b, 1)
        return Tally((missed * counts).sum(), (mask * counts).sum())

    def _tokenized(self, texts: list[str], device: torch.device) -> tuple[Tensor, Tensor]:
        """Ids and mask, (b, C), padded on the right."""
        tokenizer = self._trainer.processing_class
        return padded(
            [[*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id] for text in texts], device
        )

    def _text(self, row: Mapping[str, Any]) -> str | None:
        if self.column not in row:
            raise ConfigError(f"channel.sft: a row has no column {self.column!r}, it has {', '.join(row)}")
        said = row[self.column]
        if isinstance(said, list) and len(said) == 1 and isinstance(said[0], Mapping):
            said = said[0].get("content")
        if said is None or isinstance(said, str):
            return said
        raise ConfigError(
            f"channel.sft: column {self.column!r} holds a {type(said).__name__}; give a text, or one assistant message"
        )
