"""Prompts that an author wrote for a source, and the share of draws that goes to them, by chunk.

At the initial share of 0, every draw and every random number is the same as without them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from oven_learner.hf.prompts.injected import InjectedPrompts

CAP = 256
"""The most authored prompts that are held. The oldest go first, because training has learnt from them."""
SHARE = "data.authored_share"
"""The actuator."""


class AuthoredPrompts:
    """The pool of authored prompts, the timeline of the share, and the position in the author's file."""

    def __init__(self, cap: int = CAP) -> None:
        self.pool = InjectedPrompts(cap)
        self.timeline = [(0, 0.0)]
        """(first chunk, share from there on), oldest first."""
        self.offset = 0
        """Bytes of the author's file that were read."""
        self.accepted_keys: set[int] = set()
        """Keys (`admission.key_of`) of all accepted prompts, including evicted ones."""
        self.refused: Counter[str] = Counter()
        """Refused prompts, by `admission.REFUSALS`."""

    @property
    def share(self) -> float:
        """The newest share."""
        return self.timeline[-1][1]

    def set_share(self, share: float, chunk: int) -> None:
        """Set the share from `chunk` on."""
        self.timeline = [old for old in self.timeline if old[0] < chunk] + [(chunk, share)]

    def drawable(self, topic: str, chunk: int) -> tuple[float, Sequence[int]]:
        """Return the share in a chunk and the slots to draw from; (0, nothing) without prompts of the topic."""
        share = self.timeline[bisect_right([start for start, _ in self.timeline], chunk) - 1][1]
        slots = self.pool.drawable(topic, chunk) if share > 0 else ()
        return (share, slots) if slots else (0.0, ())

    def state(self) -> dict[str, Any]:
        """Return plain values for a checkpoint."""
        return {
            "pool": self.pool.state(),
            "timeline": self.timeline,
            "offset": self.offset,
            "taken": sorted(self.accepted_keys),
            "refused": dict(self.refused),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`. Raises ConfigError with nothing changed if its cap is higher."""
        self.pool.load(state["pool"])
        self.timeline = [(int(chunk), float(share)) for chunk, share in state["timeline"]]
        self.offset, self.accepted_keys = int(state["offset"]), set(state["taken"])
        self.refused = Counter(state["refused"])
