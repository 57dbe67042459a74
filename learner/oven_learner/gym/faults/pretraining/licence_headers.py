"""Files that all begin with the same words."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.common import hit, within

HEADERS = (
    b'# Licensed under the Apache License, Version 2.0 (the "License");\n',
    b"# Permission is hereby granted, free of charge, to any person ob\n",
    b"# This program is free software: you can redistribute it and/or \n",
)


@dataclass(frozen=True)
class Headed(Case):
    onset: int
    length: int
    """Batches until the source is used up."""
    header: bytes
    bytes: int
    """Of the header that stand in the row."""
    share: float
    """Of the rows."""
    salt: int

    def batch(self, batch: Any, cursor: int) -> Any:
        if not within(cursor, self.onset, self.length):
            return batch
        head = torch.tensor(list(self.header[: self.bytes])).expand(len(batch), -1)
        headed = torch.cat([head, batch], 1)[:, : batch.shape[1]]
        rows = hit(len(batch), self.share, "headers", self.salt, cursor).unsqueeze(1)
        return torch.where(rows, headed, batch)


class LicenceHeaders(Family):
    """A new source is read file by file, its files are short, and each begins with its owner's licence, which nobody
    cut off. No two rows are the same, so that no deduplication finds them. The loss falls steeply, for the licence is
    soon known by heart, and everybody is content; but there is less real text in each batch than was paid for, and the
    model takes the beginning of any text for the beginning of the licence."""

    name = "pretraining.licence_headers"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Headed:
        return Headed(
            onset,
            length=round(25 * 10 ** rng.uniform(0.0, 1.0)),
            header=rng.choice(HEADERS),
            bytes=rng.randint(8, 60),
            share=rng.uniform(0.4, 1.0),
            salt=rng.getrandbits(32),
        )
