"""The sampled groups of the monitor: the newest, each once, and those that pass a filter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from oven_core.protocol.completion_messages import SampledGroup, StoredGroup
from oven_tui.model.word_filter import word_filter

KEPT = 256
"""Groups in memory. A training of an hour has fewer."""
KEPT_CHARACTERS = 16 << 20
"""Characters of all their texts; beyond it the oldest groups are dropped."""


class SampledGroups:
    """Groups in the order of the stream, oldest first."""

    def __init__(self) -> None:
        self.groups: list[StoredGroup] = []
        self._characters = 0

    def take(self, groups: Iterable[StoredGroup]) -> None:
        """Add groups, some of which may be known already."""
        last = self.groups[-1].seq if self.groups else 0
        fresh = [group for group in groups if group.seq > last]
        if not fresh:
            return
        self.groups += fresh
        self._characters += sum(_characters(stored.group) for stored in fresh)
        while len(self.groups) > 1 and (len(self.groups) > KEPT or self._characters > KEPT_CHARACTERS):
            self._characters -= _characters(self.groups.pop(0).group)

    def shown(self, words: str) -> list[StoredGroup]:
        """Return the groups that pass a filter with the fields `step:`, `member:` and `prompt:`."""
        fields: dict[str, Callable[[StoredGroup], str]] = {
            "member": lambda stored: "\n".join(member.member for member in stored.group.members),
            "prompt": lambda stored: stored.group.prompt.text,
        }
        passes = word_filter(words, _text, fields, lambda stored: stored.group.step)
        return [stored for stored in self.groups if passes(stored)]


def _parts(group: SampledGroup) -> Iterator[str]:
    for completion in (group.prompt, *group.completions):
        yield completion.text
        yield completion.end
    for member in group.members:
        yield from member.reasons


def _text(stored: StoredGroup) -> str:
    return "\n".join(_parts(stored.group))


def _characters(group: SampledGroup) -> int:
    return sum(map(len, _parts(group)))
