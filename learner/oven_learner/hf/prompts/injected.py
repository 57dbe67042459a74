"""Prompts that were added while training: where they lie among the rows, from which chunk on, and until when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from oven_core.errors import ConfigError
from oven_learner.hf.knobs.mixture import LAG_CHUNKS
from oven_learner.hf.prompts.reading import Row

KEPT_CHUNKS = LAG_CHUNKS + 1
"""For so many chunks a prompt stays readable after its eviction: what was drawn ahead is still fetched."""
PLACES = 2 * KEPT_CHUNKS + 2
"""Places per prompt that can be held, so that each has one until nothing that was drawn refers to it: those held, those
evicted at each of the chunks for which they are kept, and as many again where a skip has taken back what was drawn."""


@dataclass(frozen=True, slots=True)
class Injection:
    """What an `inject` did."""

    by: str
    why: str
    topic: str
    hashes: tuple[str, ...]
    """Of the prompts, in their order (`reading.digest`)."""
    held: int
    """Injected prompts that can be drawn from now on."""
    evicted: int
    """Older ones, or the first of these, that had to make room."""


@dataclass(slots=True)
class _Held:
    place: int
    topic: str
    begins: int
    """The first chunk that may draw it."""
    ends: int | None
    """The first that may not; None: it is held."""
    row: Row


class InjectedPrompts:
    """At most `cap` are held; the oldest go first."""

    def __init__(self, cap: int) -> None:
        self.cap = cap
        self.places = cap * PLACES
        self._all: list[_Held] = []  # oldest first; evicted ones as long as something drawn may refer to them
        self._rows: dict[int, Row] = {}
        self._seen: tuple[int, dict[str, list[int]]] | None = None  # chunk → places by topic

    def __len__(self) -> int:
        return sum(one.ends is None for one in self._all)

    def row(self, place: int) -> Row | None:
        """What lies there; None: nothing."""
        return self._rows.get(place)

    def drawable(self, topic: str, chunk: int) -> Sequence[int]:
        """The places from which a chunk may draw, oldest first."""
        if self._seen is None or self._seen[0] != chunk:
            found: dict[str, list[int]] = {}
            for one in self._all:
                if one.begins <= chunk and (one.ends is None or chunk < one.ends):
                    found.setdefault(one.topic, []).append(one.place)
            self._seen = chunk, found
        return self._seen[1].get(topic, ())

    def add(self, topic: str, rows: Sequence[Row], chunk: int) -> tuple[list[int], int]:
        """The places that these have from `chunk` on, those that were evicted at once left out; how many were."""
        before = [one for one in self._all if one.ends is None]
        first, room = max(0, len(rows) - self.cap), self.cap - min(len(rows), self.cap)
        gone = before[: max(0, len(before) - room)]
        for one in gone:
            one.ends = chunk
        self._all = [
            one for one in self._all if one.ends is None or (one.begins < one.ends and one.ends > chunk - KEPT_CHUNKS)
        ]
        taken = {one.place for one in self._all}
        free = (place for place in range(self.places) if place not in taken)
        added = [_Held(next(free), topic, chunk, None, row) for row in rows[first:]]
        self._all += added
        self._found()
        return [one.place for one in added], len(gone) + first

    def state(self) -> dict[str, Any]:
        """Plain values."""
        return {"cap": self.cap, "prompts": [asdict(one) for one in self._all]}

    def load(self, state: Mapping[str, Any]) -> None:
        """What `state` returned. Raises ConfigError, with nothing changed, where it is of a higher cap."""
        if state["cap"] > self.cap:
            raise ConfigError(f"cap={self.cap}, and the state that is loaded has {state['cap']}; give at least that")
        self._all = [_Held(**one) for one in state["prompts"]]
        self._found()

    def _found(self) -> None:
        self._rows = {one.place: one.row for one in self._all}
        self._seen = None
