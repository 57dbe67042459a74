"""The page of one sampled group: its prompt, and its completions below one another or side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from oven_core.protocol.completion_messages import SampledGroup, ShownCompletion
from oven_runs.log.sampled_text import (
    BAR_CELLS,
    MISSING,
    bar,
    max_abs_advantage,
    member_line,
    number,
    signed,
    text_lines,
)
from oven_tui.model.braille_chart import Run
from oven_tui.model.cell_text import clip, row, wrapped

Line = list[Run]
COLUMN = 20
"""Fewest cells of a completion next to others."""
GAP = 2
WIDE, NARROW_BAR = 50, 4
"""Cells of a completion from which on its bar is as long as elsewhere, and cells of each half of a shorter one."""


def page(group: SampledGroup, width: int, *, beside: bool) -> list[Line]:
    """Return the page's lines, each at most `width` cells. `beside`: show as many completions side by side as fit."""
    lines: list[Line] = [[("prompt", "title")]]
    lines += _text(text_lines(group.prompt), width, "text")
    columns = max(1, (width + GAP) // (COLUMN + GAP)) if beside else 1
    columns = min(columns, max(1, len(group.completions)))
    each = (width - GAP * (columns - 1)) // columns
    blocks = [_completion(group, index, completion, each) for index, completion in enumerate(group.completions)]
    for start in range(0, len(blocks), columns):
        lines.append([])
        lines += _abreast(blocks[start : start + columns], each)
    if not blocks:
        lines += [[], [(clip("no completions", width), "dim")]]
    if group.left_out:
        lines += [[], [(clip(f"and {group.left_out} more of this group, which are not shown", width), "dim")]]
    return [line if line else [("", "blank")] for line in lines]


def summary(group: SampledGroup, width: int) -> Line:
    """Return one row of the list: the step, the group's position, and the mean and range of its rewards."""
    known = [completion.reward for completion in group.completions if completion.reward is not None]
    worth = f"{number(min(known))}…{number(max(known))}" if known else MISSING
    left_part: Line = [(f"{group.step:>6} ", "strong"), (f"{group.group + 1}/{group.groups} ", "dim")]
    return row(width, left_part, [(worth, "text" if known else "dim")])


def _completion(group: SampledGroup, index: int, completion: ShownCompletion, width: int) -> list[Line]:
    kind = "dim" if completion.advantage is None else "bad" if completion.advantage < 0 else "good"
    cells = BAR_CELLS if width >= WIDE else NARROW_BAR
    drawn = bar(completion.advantage, max_abs_advantage(group), cells)
    head: Line = [(f"{index + 1} ", "title"), (f"reward {number(completion.reward):<6} ", "strong")]
    head += [(f"adv {signed(completion.advantage):<6} ", kind), (drawn, kind)]
    return [row(width, head), *_text(text_lines(completion), width, "text"), *_members(group, index, width)]


def _members(group: SampledGroup, index: int, width: int) -> Iterator[Line]:
    """Return those without a reason together, then each with its reason."""
    members = [(member_line(member, index), bool(member.reasons)) for member in group.members]
    if short := " · ".join(words for words, reasoned in members if not reasoned):
        yield from _text([short], width, "dim")
    for words, reasoned in members:
        if reasoned:
            yield from _text([words], width, "dim")


def _abreast(blocks: Sequence[list[Line]], width: int) -> Iterator[Line]:
    for rows in zip_longest(*blocks, fillvalue=list[Run]()):
        line: Line = []
        for index, cells in enumerate(rows):
            last = index == len(rows) - 1
            line += cells if last else row(width + GAP, cells)
        yield line


def _text(lines: Sequence[str], width: int, kind: str) -> list[Line]:
    return [[(part, kind)] for line in lines for part in wrapped(line, max(1, width))]
