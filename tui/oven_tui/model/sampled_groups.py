"""The sampled groups of the monitor: the newest, each once, and those that pass a filter."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from oven_core.protocol.completion_messages import SampledGroup, StoredGroup

KEPT = 256
"""Groups in memory. A training of an hour has fewer."""
KEPT_CHARACTERS = 16 << 20
"""Characters of all their texts; beyond it the oldest groups are dropped."""


class SampledGroups:
    """Groups in the order of the stream, oldest first."""

    def __init__(self) -> None:
        self.groups: list[StoredGroup] = []
        self.version = 0
        """Changes with each new group."""
        self._characters = 0

    def take(self, groups: Iterable[StoredGroup]) -> None:
        """Add groups, some of which may be known already."""
        last = self.groups[-1].seq if self.groups else 0
        fresh = [group for group in groups if group.seq > last]
        if not fresh:
            return
        self.version += 1
        self.groups += fresh
        self._characters += sum(characters(stored.group) for stored in fresh)
        while len(self.groups) > 1 and (len(self.groups) > KEPT or self._characters > KEPT_CHARACTERS):
            self._characters -= characters(self.groups.pop(0).group)

    def shown(self, wanted: str) -> list[StoredGroup]:
        """Return the groups that pass a filter; all if it is empty."""
        passes = matching(wanted)
        return [stored for stored in self.groups if passes(stored.group)]


def characters(group: SampledGroup) -> int:
    """Return the characters of a group's texts."""
    texts = (group.prompt, *group.completions)
    reasons = (reason for member in group.members for reason in member.reasons)
    return sum(len(completion.text) + len(completion.end) for completion in texts) + sum(map(len, reasons))


def matching(wanted: str) -> Callable[[SampledGroup], bool]:
    """Return a filter whose words must all match: `step:40-90`, `member:exact`, `prompt:sort`, others as regular
    expressions in prompt, completions and reasons; `!` before one negates it."""
    tests = [_test(word) for word in wanted.split()]
    return lambda group: all(test(group) for test in tests)


def _test(word: str) -> Callable[[SampledGroup], bool]:
    negated = word.startswith("!") and len(word) > 1
    test = _plain(word[1:] if negated else word)
    return (lambda group: not test(group)) if negated else test


def _plain(word: str) -> Callable[[SampledGroup], bool]:
    field, colon, value = word.partition(":")
    if colon and field == "step" and (span := re.fullmatch(r"(\d*)(-?)(\d*)", value)) and value not in ("", "-"):
        low = int(span[1] or 0)
        high = int(span[3]) if span[3] else (low if not span[2] else None)
        return lambda group: low <= group.step and (high is None or group.step <= high)
    if colon and field == "member":
        named = _expression(value)
        return lambda group: any(named.search(member.member) for member in group.members)
    if colon and field == "prompt":
        pattern = _expression(value)
        return lambda group: bool(pattern.search(group.prompt.text))
    pattern = _expression(word)
    return lambda group: any(pattern.search(text) for text in _texts(group))


def _texts(group: SampledGroup) -> Iterable[str]:
    for part in (group.prompt, *group.completions):
        yield part.text
        yield part.end
    for member in group.members:
        yield from member.reasons


def _expression(text: str) -> re.Pattern[str]:
    """Compile an expression; an invalid one is taken literally."""
    try:
        return re.compile(text, re.IGNORECASE)
    except re.error:
        return re.compile(re.escape(text), re.IGNORECASE)
