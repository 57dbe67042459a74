"""Stores the newest sampled groups for the monitor, without duplicates, and filters them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from oven_tui.model.word_filter import word_filter

if TYPE_CHECKING:  # not needed until the user opens the page
    from oven_core.protocol.completion_messages import SampledGroup, StoredGroup

MAX_GROUPS = 256
"""Maximum number of groups in memory. A training run of one hour has fewer."""
MAX_CHARACTERS = 16 * 1024**2
"""Maximum total length of the groups' prompts, completions and reasons. The oldest groups are dropped first."""


class SampledGroups:
    """The newest sampled groups, oldest first."""

    def __init__(self) -> None:
        self.groups: list[StoredGroup] = []
        self._characters = 0

    def add(self, groups: Iterable[StoredGroup]) -> None:
        """Add groups. Known groups are ignored."""
        last_seq = self.groups[-1].seq if self.groups else 0
        new_groups = [group for group in groups if group.seq > last_seq]
        if not new_groups:
            return
        self.groups += new_groups
        self._characters += sum(_count_characters(stored.group) for stored in new_groups)
        while len(self.groups) > 1 and (len(self.groups) > MAX_GROUPS or self._characters > MAX_CHARACTERS):
            self._characters -= _count_characters(self.groups.pop(0).group)

    def matching(self, words: str) -> list[StoredGroup]:
        """Return the groups that pass a filter, which supports the fields `step:`, `member:` and `prompt:`."""
        fields: dict[str, Callable[[StoredGroup], str]] = {
            "member": lambda stored: "\n".join(member.member for member in stored.group.members),
            "prompt": lambda stored: stored.group.prompt.text,
        }
        passes = word_filter(words, _join_texts, fields, lambda stored: stored.group.step)
        return [stored for stored in self.groups if passes(stored)]


def _list_texts(group: SampledGroup) -> Iterator[str]:
    for completion in (group.prompt, *group.completions):
        yield completion.text
        yield completion.end
    for member in group.members:
        yield from member.reasons


def _join_texts(stored: StoredGroup) -> str:
    return "\n".join(_list_texts(stored.group))


def _count_characters(group: SampledGroup) -> int:
    return sum(len(text) for text in _list_texts(group))
