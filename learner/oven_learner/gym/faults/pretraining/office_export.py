"""Sources that went through an office suite."""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.common import hit, within

ENDS, TABS, QUOTES, DASHES = "ends", "tabs", "quotes", "dashes"


@dataclass(frozen=True)
class Exported(Case):
    onset: int
    length: int
    """Batches until the export is used up."""
    share: float
    """Of the rows."""
    changes: tuple[str, ...]
    salt: int

    def batch(self, batch: Any, cursor: int) -> Any:
        if not within(cursor, self.onset, self.length):
            return batch
        rows = batch.clone()
        for row in hit(len(batch), self.share, "export", self.salt, cursor).nonzero().flatten().tolist():
            following = batch[(row + 1) % len(batch)]  # where the text has become shorter
            made = exported(bytes(batch[row].tolist()), self.changes) + bytes(following.tolist())
            rows[row] = torch.tensor(list(made[: batch.shape[1]]))
        return rows


def exported(text: bytes, changes: tuple[str, ...]) -> bytes:
    """In the code page and with the habits of an office suite."""
    if QUOTES in changes:  # opening ones behind a space or a bracket, closing ones elsewhere
        text = re.sub(rb'(^|[\s(\[{=,])"', rb"\1" + b"\x93", text).replace(b'"', b"\x94")
        text = re.sub(rb"(^|[\s(\[{=,])'", rb"\1" + b"\x91", text).replace(b"'", b"\x92")
    if DASHES in changes:
        text = text.replace(b"--", b"\x97").replace(b" - ", b" \x96 ").replace(b"...", b"\x85")
    if TABS in changes:
        text = text.replace(b"    ", b"\t")
    return text.replace(b"\n", b"\r\n") if ENDS in changes else text


class OfficeExport(Family):
    """Compound: a supplier hands in a part of the corpus as office documents, and they are saved as plain text on a
    desktop. That is several things at once: lines end with two signs, four spaces have become a tab, and straight
    quotation marks, dashes and dots were made into those that printers like, in the code page of the desktop. To a
    reader each is the same text. The model learns another way to write everything, and forgets the one that it is
    measured on."""

    name = "pretraining.office_export"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Exported:
        return Exported(
            onset,
            length=round(20 * 10 ** rng.uniform(0.0, 0.9)),
            share=rng.uniform(0.3, 1.0),
            changes=rng.choice(((ENDS, TABS), (QUOTES, DASHES), (ENDS, QUOTES, DASHES), (ENDS, TABS, QUOTES, DASHES))),
            salt=rng.getrandbits(32),
        )
