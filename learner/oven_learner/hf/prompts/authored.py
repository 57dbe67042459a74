"""Prompts that an author wrote for a source: which are held, and what share of the draws goes to them, chunk by chunk.

At a share of 0, which is where it begins, no draw and no random number is another than without them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from oven_learner.hf.prompts.injected import InjectedPrompts

CAP = 256
"""Authored prompts that are held; the oldest go first: what a topic lacked when they were written, it has learnt."""
SHARE = "data.authored_share"
"""The actuator."""


class AuthoredPrompts:
    """The pool, the share's timeline, and how far the author's file was read: all that a checkpoint keeps of them."""

    def __init__(self, cap: int = CAP) -> None:
        self.pool = InjectedPrompts(cap)
        self.timeline = [(0, 0.0)]
        """(first chunk, share from it on), oldest first."""
        self.offset = 0
        """Bytes of the author's file that were read."""
        self.taken: set[int] = set()
        """Keys (`admission.key_of`) of all prompts that were taken, those that made room included."""
        self.refused: Counter[str] = Counter()
        """Prompts that were not, by `admission.REFUSALS`."""

    @property
    def share(self) -> float:
        """As last set."""
        return self.timeline[-1][1]

    def set_share(self, share: float, chunk: int) -> None:
        """From `chunk` on."""
        self.timeline = [old for old in self.timeline if old[0] < chunk] + [(chunk, share)]

    def drawable(self, topic: str, chunk: int) -> tuple[float, Sequence[int]]:
        """The share in a chunk, and the places that it goes to; (0, nothing) where there are none of the topic."""
        share = self.timeline[bisect_right([start for start, _ in self.timeline], chunk) - 1][1]
        places = self.pool.drawable(topic, chunk) if share > 0 else ()
        return (share, places) if places else (0.0, ())

    def state(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "pool": self.pool.state(),
            "timeline": self.timeline,
            "offset": self.offset,
            "taken": sorted(self.taken),
            "refused": dict(self.refused),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """What `state` returned. Raises ConfigError, with nothing changed, where it is of a higher cap."""
        self.pool.load(state["pool"])
        self.timeline = [(int(chunk), float(share)) for chunk, share in state["timeline"]]
        self.offset, self.taken = int(state["offset"]), set(state["taken"])
        self.refused = Counter(state["refused"])
