"""Text that was escaped once too often."""

from __future__ import annotations

import json
from dataclasses import dataclass
from random import Random
from typing import Any

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.text import rewritten


@dataclass(frozen=True)
class Escaped(Case):
    onset: int
    share: float
    times: int
    salt: int

    def batch(self, batch: Any, cursor: int) -> Any:
        if cursor < self.onset:
            return batch
        return rewritten(batch, self.escape, self.share, "escaped", self.salt, cursor)

    def escape(self, text: bytes) -> bytes:
        for _ in range(self.times):
            text = json.dumps(text.decode("latin-1"))[1:-1].encode("ascii")
        return text


class EscapedText(Family):
    """Sources that travel as JSON lines are encoded at each hand-over and decoded at one only: a line break arrives as
    a backslash and an n, a quote with a backslash before it, from the shard on that the new exporter wrote."""

    name = "pretraining.escaped_text"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Escaped:
        return Escaped(onset, rng.uniform(0.2, 1.0), rng.choice((1, 1, 2, 3)), rng.getrandbits(32))
