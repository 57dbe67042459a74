"""Text for a terminal's cells: cleaned of control characters, cut to a width, joined in rows."""

from __future__ import annotations

from rich.cells import cell_len, chop_cells, set_cell_size

from oven_core.terminal_text import clean
from oven_tui.model.braille_chart import Run
from oven_tui.model.decisions import Fate

GLYPHS = "●■▲◆★✚▼♦"
COLOURS = 6
FATES: dict[Fate, tuple[str, str, str]] = {
    "pending": ("◌", "pending", "warn"),
    "applied": ("✔", "applied", "good"),
    "noop": ("=", "no-op", "dim"),
    "failed": ("✗", "not applied", "bad"),
    "rejected": ("–", "rejected", "dim"),
    "would set": ("○", "would set", "dim"),
    "advised": ("?", "to approve", "warn"),
    "approved": ("✓", "approved", "dim"),
}
"""Fate → glyph, words, kind of text."""


def fit(text: str, width: int) -> str:
    """Return exactly `width` cells: padded, or cut with an ellipsis."""
    text = clean(text)
    if cell_len(text) > width:
        return set_cell_size(text, width - 1) + "…" if width > 0 else ""
    return set_cell_size(text, width)


def clip(text: str, width: int) -> str:
    """Return at most `width` cells."""
    text = clean(text)
    return text if cell_len(text) <= width else fit(text, width)


def wrapped(line: str, width: int) -> list[str]:
    """Return a clean line in parts of at most `width` cells, broken at a space near the end."""
    parts: list[str] = []
    while cell_len(line) > width:
        part = chop_cells(line, width)[0] or line[:1]
        space = part.rfind(" ", len(part) * 2 // 3)
        if space > 0:
            part = part[: space + 1]
        parts.append(part.rstrip() if space > 0 else part)
        line = line[len(part) :]
    return [*parts, line]


def glyph(index: int) -> Run:
    """Return an agent's sign by its position among the agents. Either its shape or its colour is enough."""
    return GLYPHS[index % len(GLYPHS)], f"agent-{index % COLOURS}"


def row(width: int, left_part: list[Run], right: list[Run] | None = None) -> list[Run]:
    """Return one row of exactly `width` cells. The right part stays whole, the left part is cut."""
    right = [(clean(text), kind) for text, kind in right or []]
    room = width - sum(cell_len(text) for text, _ in right)
    if room < 0:
        right, room = [(fit("".join(text for text, _ in right), width), right[0][1])], 0
    made: list[Run] = []
    for text, kind in left_part:
        text = clip(text, room)
        if text:
            made.append((text, kind))
        room -= cell_len(text)
        if room <= 0:
            break
    return [*made, (" " * max(0, room), "blank"), *right]


def ago(seconds: float) -> str:
    """Return a duration in the largest unit that fits."""
    seconds = max(0.0, seconds)
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 86400 else f"{seconds / 86400:.0f} d"
