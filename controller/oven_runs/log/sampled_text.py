"""A sampled group in words for a terminal: prompt, completions, scores with reasons, advantages. Whatever the texts
hold, a line is a line and steers nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator

from oven_core.protocol.completion_messages import MemberScores, SampledGroup, ShownText, StoredGroup
from oven_core.terminal_text import clean

MISSING = "–"
"""In the place of a number that there is not."""
BAR_CELLS = 8
"""Of the longest bar, to either side of the middle."""


def group_lines(stored: StoredGroup) -> Iterator[str]:
    """The group, a line at a time, of any length."""
    group = stored.group
    yield heading(group, stored.time)
    yield "  prompt"
    yield from _quoted(group.prompt)
    widest = greatest_advantage(group)
    for place, completion in enumerate(group.completions):
        worth = f"reward {number(completion.reward)}, advantage {signed(completion.advantage)}"
        yield f"  {place + 1}  {worth}  {bar(completion.advantage, widest)}".rstrip()
        yield from _quoted(completion)
        for member in group.members:
            yield f"       {member_words(member, place)}"
    if not group.completions:
        yield "  no completions"
    if group.left_out:
        yield f"  and {group.left_out} more completions of this group, which are not shown"


def heading(group: SampledGroup, time: str = "") -> str:
    """Which group of which step."""
    when = f", {time[:19].replace('T', ' ')}" if time else ""
    of = f"group {group.group + 1} of {group.groups}"
    return clean(f"step {group.step} (tick {group.tick}), {of}{when}{', redacted' if group.redacted else ''}")


def member_words(member: MemberScores, place: int) -> str:
    """What a member said of the completion at a place."""
    score = member.scores[place] if place < len(member.scores) else None
    why = member.reasons[place] if place < len(member.reasons) else ""
    if score is None and member.abstained:
        return clean(f"{member.member} {MISSING} ({member.abstained})")
    return clean(f"{member.member} {number(score)}" + (f": {why}" if why else ""))


def text_lines(shown: ShownText) -> list[str]:
    """The text as it has line breaks, each line clean, and how much was left out of it."""
    if not (shown.text or shown.cut or shown.end):
        return ["(empty)"]
    lines = [clean(line) for line in _split(shown.text)]
    if shown.cut:
        lines += [f"… {shown.cut:,} characters are left out …"]
        lines += [clean(line) for line in _split(shown.end)] if shown.end else []
    return lines


def number(value: float | None) -> str:
    """Three digits, or a sign that there is none."""
    return MISSING if value is None or math.isnan(value) else f"{value:.3g}"


def signed(value: float | None) -> str:
    """With its sign."""
    return MISSING if value is None or math.isnan(value) else f"{value:+.3g}"


def greatest_advantage(group: SampledGroup) -> float:
    """By absolute value; 0 where there is none."""
    known = (one.advantage for one in group.completions if one.advantage is not None)
    return max((abs(value) for value in known if math.isfinite(value)), default=0.0)


def bar(value: float | None, greatest: float, cells: int = BAR_CELLS) -> str:
    """Left of the middle where it is below 0, right of it where above; empty where there is none."""
    if value is None or not math.isfinite(value) or greatest <= 0:
        return ""
    length = round(cells * min(1.0, abs(value) / greatest))
    return (" " * (cells - length) + "▓" * length + "│") if value < 0 else (" " * cells + "│" + "█" * length)


def _quoted(shown: ShownText) -> list[str]:
    return [f"     │ {line}" for line in text_lines(shown)]


def _split(text: str) -> list[str]:
    """At line breaks alone: a form feed or a Unicode separator is a sign like any other, and is cleaned."""
    return text.replace("\r\n", "\n").split("\n")
