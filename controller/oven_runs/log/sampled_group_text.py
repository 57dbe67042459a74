"""Format a sampled group as text for a terminal: its prompt, completions, scores with reasons, and advantages.

Text is cleaned first, so that it cannot break lines or control the terminal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from oven_core.protocol.completion_messages import MemberScores, SampledGroup, ShownText, StoredGroup
from oven_core.terminal_text import clean

MISSING = "–"
"""Text in place of a missing number."""
BAR_CELLS = 8
"""Maximum length of a bar on either side of the middle, in terminal cells."""


def group_lines(stored: StoredGroup) -> Iterator[str]:
    """Yield the group's lines, which are not wrapped."""
    group = stored.group
    yield heading(group, stored.time)
    yield "  prompt"
    yield from _quote(group.prompt)
    max_advantage = max_abs_advantage(group)
    for index, completion in enumerate(group.completions):
        scores = f"reward {format_number(completion.reward)}, advantage {format_signed(completion.advantage)}"
        yield f"  {index + 1}  {scores}  {bar(completion.advantage, max_advantage)}".rstrip()
        yield from _quote(completion)
        for member in group.members:
            yield f"       {member_line(member, index)}"
    if not group.completions:
        yield "  no completions"
    if group.left_out:
        yield f"  {group.left_out} more completions of this group were not stored"


def heading(group: SampledGroup, time: str = "") -> str:
    """Return a heading with the group's step, number and time."""
    position = f"group {group.group + 1} of {group.groups}"
    time_text = f", {time[:19].replace('T', ' ')}" if time else ""
    note = ", redacted" if group.redacted else ""
    return clean(f"step {group.step} (tick {group.tick}), {position}{time_text}{note}")


def member_line(member: MemberScores, index: int) -> str:
    """Return a committee member's score and reason for the completion at `index`."""
    score = member.scores[index] if index < len(member.scores) else None
    reason = member.reasons[index] if index < len(member.reasons) else ""
    if score is None and member.abstained:
        return clean(f"{member.member} {MISSING} ({member.abstained})")
    return clean(f"{member.member} {format_number(score)}" + (f": {reason}" if reason else ""))


def text_lines(shown: ShownText) -> list[str]:
    """Return the cleaned lines of the text, with a note about omitted characters."""
    if not (shown.text or shown.cut or shown.end):
        return ["(empty)"]
    lines = [clean(line) for line in _split(shown.text)]
    if shown.cut:
        lines += [f"… {shown.cut:,} characters omitted …"]
        lines += [clean(line) for line in _split(shown.end)] if shown.end else []
    return lines


def format_number(value: float | None) -> str:
    """Format a number with three significant digits, or return MISSING."""
    return MISSING if value is None or math.isnan(value) else f"{value:.3g}"


def format_signed(value: float | None) -> str:
    """Format a number with its sign and three significant digits, or return MISSING."""
    return MISSING if value is None or math.isnan(value) else f"{value:+.3g}"


def max_abs_advantage(group: SampledGroup) -> float:
    """Return the maximum absolute advantage, or 0 if there is none."""
    advantages = (c.advantage for c in group.completions if c.advantage is not None)
    return max((abs(value) for value in advantages if math.isfinite(value)), default=0.0)


def bar(value: float | None, max_value: float, cells: int = BAR_CELLS) -> str:
    """Draw a bar from the middle to the left (negative) or right (positive), or return "" if it cannot be drawn."""
    if value is None or not math.isfinite(value) or max_value <= 0:
        return ""
    length = round(cells * min(1.0, abs(value) / max_value))
    if value < 0:
        return " " * (cells - length) + "▓" * length + "│"
    return " " * cells + "│" + "█" * length


def _quote(shown: ShownText) -> list[str]:
    return [f"     │ {line}" for line in text_lines(shown)]


def _split(text: str) -> list[str]:
    """Split the text at line breaks, but not at form feeds or Unicode separators, which `clean` replaces."""
    return text.replace("\r\n", "\n").split("\n")
