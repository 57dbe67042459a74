"""Manages prompts that are added during training, with their row slots and the chunks that may draw them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from oven_core.errors import ConfigError
from oven_learner.hf.knobs.mixture import LAG_CHUNKS
from oven_learner.hf.prompts.prompt_rows import Row

KEPT_CHUNKS = LAG_CHUNKS + 1
"""Number of chunks for which an evicted prompt can still be read, because it may have been drawn ahead."""
SLOTS_PER_PROMPT = 2 * (1 + KEPT_CHUNKS)
"""Number of row slots per prompt that the pool may hold. The current prompts need slots, and so do the prompts evicted
in the last KEPT_CHUNKS chunks. After a skip has discarded chunks, twice as many slots may be in use."""


@dataclass(frozen=True, slots=True)
class Injection:
    """The result of `inject`."""

    by: str
    why: str
    topic: str
    hashes: tuple[str, ...]
    """Hashes of the prompts, in order (`prompt_rows.digest`)."""
    held: int
    """Number of injected prompts that can be drawn now."""
    evicted: int
    """Number of prompts that were evicted to make room: older prompts, or the first of the new ones."""


@dataclass(slots=True)
class _Entry:
    slot: int
    topic: str
    begins: int
    """The first chunk that may draw the prompt."""
    ends: int | None
    """The first chunk that may not draw it any longer, or None if it has not been evicted."""
    row: Row


class InjectedPrompts:
    """A pool of at most `cap` prompts. The oldest are evicted first."""

    def __init__(self, cap: int) -> None:
        self.cap = cap
        self.slots = cap * SLOTS_PER_PROMPT
        self._entries: list[_Entry] = []  # oldest first, with evicted prompts while a drawn chunk may refer to them
        self._rows: dict[int, Row] = {}
        self._cached: tuple[int, dict[str, list[int]]] | None = None  # chunk, slots by topic

    def __len__(self) -> int:
        return sum(entry.ends is None for entry in self._entries)

    def row(self, slot: int) -> Row | None:
        return self._rows.get(slot)

    def drawable_slots(self, topic: str, chunk: int) -> Sequence[int]:
        """Return the slots of the topic's prompts that a chunk may draw."""
        if self._cached is None or self._cached[0] != chunk:
            slots: dict[str, list[int]] = {}
            for entry in self._entries:
                if entry.begins <= chunk and (entry.ends is None or chunk < entry.ends):
                    slots.setdefault(entry.topic, []).append(entry.slot)
            self._cached = chunk, slots
        return self._cached[1].get(topic, ())

    def add(self, topic: str, rows: Sequence[Row], chunk: int) -> tuple[list[int], int]:
        """Add rows that can be drawn from `chunk` on. Return the slots of those within the cap, and the number of
        evicted prompts."""
        current_entries = [entry for entry in self._entries if entry.ends is None]
        overflow, space = max(0, len(rows) - self.cap), max(0, self.cap - len(rows))
        evicted_entries = current_entries[: max(0, len(current_entries) - space)]
        for entry in evicted_entries:
            entry.ends = chunk
        self._entries = [
            entry
            for entry in self._entries
            if entry.ends is None or (entry.begins < entry.ends and entry.ends > chunk - KEPT_CHUNKS)
        ]
        used_slots = {entry.slot for entry in self._entries}
        free_slots = (slot for slot in range(self.slots) if slot not in used_slots)
        new_entries = [_Entry(next(free_slots), topic, chunk, None, row) for row in rows[overflow:]]
        self._entries += new_entries
        self._reindex()
        return [entry.slot for entry in new_entries], len(evicted_entries) + overflow

    def state(self) -> dict[str, Any]:
        return {"cap": self.cap, "prompts": [asdict(entry) for entry in self._entries]}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`. Raises ConfigError, and changes nothing, if its cap is higher."""
        if state["cap"] > self.cap:
            raise ConfigError(f"cap={self.cap} is lower than the saved state's cap; use cap={state['cap']} or more")
        self._entries = [_Entry(**fields) for fields in state["prompts"]]
        self._reindex()

    def _reindex(self) -> None:
        self._rows = {entry.slot: entry.row for entry in self._entries}
        self._cached = None
