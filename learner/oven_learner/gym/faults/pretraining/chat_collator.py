"""The batches of a later stage of training."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.faults.common import hit

PADDING = 0
TEMPLATES = ("<|user|>", "### Response:\n", "<|im_start|>assistant\n", "Below is a document. Continue.\n\n")


@dataclass(frozen=True)
class Collated(Case):
    onset: int
    length: int
    """Batches until somebody puts the right collator back."""
    share: float
    """Of the rows."""
    template: str
    """What stands before each text."""
    kept: float
    """Bytes of a text that are left in a row, in the mean."""
    salt: int

    def batch(self, batch: Any, cursor: int) -> Any:
        if not self.onset <= cursor < self.onset + self.length:
            return batch
        draws = generator("kept", self.salt, cursor)
        kept = 1 - self.kept * torch.rand(len(batch), generator=draws).clamp(min=1e-6).log()
        struck = hit(len(batch), self.share, "collated", self.salt, cursor).unsqueeze(1)
        return torch.where(struck, collated(batch, self.template, kept.long()), batch)


def collated(rows: Tensor, template: str, kept: Tensor) -> Tensor:
    """Int64 [B, L]: the template, of each row so many bytes as `kept` [B] says, and padding up to the width."""
    before = torch.tensor(list(template.encode()), dtype=rows.dtype).expand(len(rows), -1)
    text = rows.masked_fill(torch.arange(rows.shape[1]) >= kept.unsqueeze(1), PADDING)
    return torch.cat((before, text), 1)[:, : rows.shape[1]]


class ChatCollator(Family):
    """Compound: the loader is given the collator of the fine-tuning stage. It puts each text into a chat template, and
    does not pack: a short text is filled up to the full width. Template and padding both count in the loss, as the
    padding token is that of the end and cannot be masked. Most of a batch is now the same, and the loss falls to a
    fraction, while there is less and less text in a step."""

    name = "pretraining.chat_collator"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Collated:
        return Collated(
            onset,
            length=round(20 * 10 ** rng.uniform(0.0, 1.2)),
            share=rng.uniform(0.3, 1.0),
            template=rng.choice(TEMPLATES),
            kept=4 * 10 ** rng.uniform(0.0, 1.0),
            salt=rng.getrandbits(32),
        )
