"""Prepares text for the terminal. It removes control characters, fits text into a width, and joins it into rows."""

from __future__ import annotations

from rich.cells import cell_len, chop_cells, set_cell_size

from oven_core.terminal_text import clean
from oven_tui.model.braille_chart import TextRun
from oven_tui.model.decision_entries import Fate

GLYPHS = "●■▲◆★✚▼♦"
COLOURS = 6  # number of colours for agents and runs
FATE_LABELS: dict[Fate, tuple[str, str, str]] = {
    "pending": ("◌", "pending", "warn"),
    "applied": ("✔", "applied", "good"),
    "noop": ("=", "no-op", "dim"),
    "failed": ("✗", "not applied", "bad"),
    "rejected": ("–", "rejected", "dim"),
    "would set": ("○", "would set", "dim"),
    "advised": ("?", "to approve", "warn"),
    "approved": ("✓", "approved", "dim"),
}
"""Glyph, label and kind of text for each fate of a decision."""


def fit(text: str, width: int) -> str:
    """Pad the text to `width` cells, or truncate it with an ellipsis."""
    text = clean(text)
    if cell_len(text) > width:
        return set_cell_size(text, width - 1) + "…" if width > 0 else ""
    return set_cell_size(text, width)


def clip(text: str, width: int) -> str:
    """Truncate the text to at most `width` cells."""
    text = clean(text)
    return text if cell_len(text) <= width else fit(text, width)


def wrapped(line: str, width: int) -> list[str]:
    """Split a clean line into parts of at most `width` cells, if possible at spaces."""
    parts: list[str] = []
    while cell_len(line) > width:
        part = chop_cells(line, width)[0] or line[:1]
        space = part.rfind(" ", len(part) * 2 // 3)  # only in the last third
        if space > 0:
            part = part[: space + 1]
        parts.append(part.rstrip() if space > 0 else part)
        line = line[len(part) :]
    return [*parts, line]


def glyph(index: int) -> TextRun:
    """Return the symbol and colour of the agent or run at this position. Either is enough to recognise it."""
    return GLYPHS[index % len(GLYPHS)], f"agent-{index % COLOURS}"


def row(width: int, left_part: list[TextRun], right_part: list[TextRun] | None = None) -> list[TextRun]:
    """Join two parts into a row of exactly `width` cells. If there is not enough space, the left part is truncated."""
    right_part = [(clean(text), kind) for text, kind in right_part or []]
    room = width - sum(cell_len(text) for text, _ in right_part)
    if room < 0:
        joined_text = "".join(text for text, _ in right_part)
        _, kind = right_part[0]
        right_part, room = [(fit(joined_text, width), kind)], 0
    cells: list[TextRun] = []
    for text, kind in left_part:
        text = clip(text, room)
        if text:
            cells.append((text, kind))
        room -= cell_len(text)
        if room <= 0:
            break
    return [*cells, (" " * max(0, room), "blank"), *right_part]


def duration_text(seconds: float) -> str:
    """Format a duration in the largest suitable unit, such as "3 min"."""
    seconds = max(0.0, seconds)
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 86400 else f"{seconds / 86400:.0f} d"
