"""Lays out the page of one sampled group, with its prompt and its completions, one below another or side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from oven_core.protocol.completion_messages import SampledGroup
from oven_runs.log.sampled_text import (
    BAR_CELLS,
    MISSING,
    bar,
    format_number,
    format_signed,
    max_abs_advantage,
    member_line,
    text_lines,
)
from oven_tui.model.braille_chart import TextRun
from oven_tui.model.cell_text import clip, row, wrapped

Line = list[TextRun]
MIN_COLUMN_CELLS = 20
"""Minimum width of a completion in side-by-side layout."""
GAP_CELLS = 2  # between two columns
FULL_BAR_COLUMN_CELLS = 50  # minimum width of a column for a full-length bar
SHORT_BAR_CELLS = 4  # length of each half of the short bar


def page(group: SampledGroup, width: int, *, side_by_side: bool) -> list[Line]:
    """Return the page's lines, at most `width` cells wide. With `side_by_side`, completions share a row if they fit."""
    lines: list[Line] = [[("prompt", "title")]]
    lines += _wrap_lines(text_lines(group.prompt), width, "text")
    columns = max(1, (width + GAP_CELLS) // (MIN_COLUMN_CELLS + GAP_CELLS)) if side_by_side else 1
    columns = min(columns, max(1, len(group.completions)))
    column_width = (width - GAP_CELLS * (columns - 1)) // columns
    blocks = [_lay_out_completion(group, index, column_width) for index in range(len(group.completions))]
    for start in range(0, len(blocks), columns):
        lines.append([])
        lines += _join_columns(blocks[start : start + columns], column_width)
    if not blocks:
        lines += [[], [(clip("no completions", width), "dim")]]
    if group.left_out:
        lines += [[], [(clip(f"{group.left_out} more completions of this group are not shown", width), "dim")]]
    return [line if line else [("", "blank")] for line in lines]


def summary(group: SampledGroup, width: int) -> Line:
    """Return the group's row in the list: its step, its position in the step, and the range of its rewards."""
    rewards = [completion.reward for completion in group.completions if completion.reward is not None]
    reward_range = f"{format_number(min(rewards))}…{format_number(max(rewards))}" if rewards else MISSING
    left_part: Line = [(f"{group.step:>6} ", "strong"), (f"{group.group + 1}/{group.groups} ", "dim")]
    return row(width, left_part, [(reward_range, "text" if rewards else "dim")])


def _lay_out_completion(group: SampledGroup, index: int, width: int) -> list[Line]:
    completion, kind = group.completions[index], "dim"
    if completion.advantage is not None:
        kind = "bad" if completion.advantage < 0 else "good"
    cells = BAR_CELLS if width >= FULL_BAR_COLUMN_CELLS else SHORT_BAR_CELLS
    advantage_bar = bar(completion.advantage, max_abs_advantage(group), cells)
    head: Line = [(f"{index + 1} ", "title"), (f"reward {format_number(completion.reward):<6} ", "strong")]
    head += [(f"adv {format_signed(completion.advantage):<6} ", kind), (advantage_bar, kind)]
    return [row(width, head), *_wrap_lines(text_lines(completion), width, "text"), *_list_members(group, index, width)]


def _list_members(group: SampledGroup, index: int, width: int) -> Iterator[Line]:
    """Yield the scores of the committee's members. Members that gave no reasons share one line."""
    without_reasons = [member_line(member, index) for member in group.members if not member.reasons]
    if without_reasons:
        yield from _wrap_lines([" · ".join(without_reasons)], width, "dim")
    for member in group.members:
        if member.reasons:
            yield from _wrap_lines([member_line(member, index)], width, "dim")


def _join_columns(blocks: Sequence[list[Line]], width: int) -> Iterator[Line]:
    for rows in zip_longest(*blocks, fillvalue=list[TextRun]()):
        line: Line = []
        for index, cells in enumerate(rows):
            is_last = index == len(rows) - 1
            line += cells if is_last else row(width + GAP_CELLS, cells)
        yield line


def _wrap_lines(lines: Sequence[str], width: int, kind: str) -> list[Line]:
    return [[(part, kind)] for line in lines for part in wrapped(line, max(1, width))]
