"""Text in ASCII, cell for cell, for terminals and fonts without braille, box drawing and other signs."""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import Final

from rich.cells import cell_len

SIGNS: Final = {
    **dict(zip("●■▲◆★✚▼♦", "O#^*@+V&", strict=True)),  # agents (cell_text.GLYPHS)
    **dict(zip("◌✔✗○✓⚑", ".vXov!", strict=True)),  # fates, and an operator's word
    **dict(zip("→←↑↓⇒▸◂▴▾⏎␣", "><^v>><^v<_", strict=True)),
    **dict(zip("×÷±≤≥≈≠−·•…–—", "x/~<>~!-.*.--", strict=True)),
    **dict(zip("“”\u2018\u2019«»‖¶§°", "\"\"''<>\"Ps'", strict=True)),
    **dict(zip("αβγδελμπρσΔΣ", "abgdelmprsDS", strict=True)),
    **dict(zip("█▓▒░▌▐┊┆╎━═─╌", "#%:.||:::==--", strict=True)),
}
"""Sign → the ASCII in its place. No two agents share one, and no two marks of a chart."""
BRAILLE, BOX, BLOCKS = range(0x2800, 0x2900), range(0x2500, 0x2580), range(0x2580, 0x25A0)
UPRIGHT: Final = frozenset("│┃║╷╵╽╿")
"""Box-drawing signs that become a bar. The others are corners and crossings."""


def ascii_text(text: str) -> str:
    """Return the text in the same number of cells."""
    return text if text.isascii() else "".join(map(_sign, text))


@lru_cache(4096)
def _sign(char: str) -> str:
    if char.isascii():
        return char
    if char in SIGNS:
        return SIGNS[char]
    code = ord(char)
    if code in BRAILLE:
        return _dots(code - 0x2800)
    if code in BOX:
        return "|" if char in UPRIGHT else "+"
    if code in BLOCKS:
        return " "  # the fine ends of scrollbars
    plain = unicodedata.normalize("NFKD", char)[:1]
    width = cell_len(char)
    return plain if plain.isascii() and width == 1 else "?" * width


def _dots(dots: int) -> str:
    """Return the character that looks most like a cell's dots: a slope, an upright, or a level at their height."""
    left_dots = [row for row, bit in enumerate((0x01, 0x02, 0x04, 0x40)) if dots & bit]
    right = [row for row, bit in enumerate((0x08, 0x10, 0x20, 0x80)) if dots & bit]
    rows = left_dots + right
    if not rows:
        return " "
    if max(rows) - min(rows) >= 2:
        slope = sum(right) / len(right) - sum(left_dots) / len(left_dots) if left_dots and right else 0.0
        return "|" if abs(slope) < 1 else "\\" if slope > 0 else "/"
    level = sum(rows) / len(rows)
    return "'" if level < 0.75 else "-" if level < 2.25 else "."
