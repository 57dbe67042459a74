"""The monitor's appearance: themes, and replacements for colours and symbols that a terminal does not support."""

from __future__ import annotations

import locale
import os
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from rich.cells import cell_len
from rich.color import Color as RichColor
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter
from textual.theme import Theme

DARK, LIGHT = "textual-dark", "textual-light"
COLOUR_BLIND, COLOUR_BLIND_LIGHT = "colour-blind", "colour-blind-light"
THEMES = (DARK, LIGHT, COLOUR_BLIND, COLOUR_BLIND_LIGHT)
"""Themes in the order in which ctrl+t cycles through them."""
CUSTOM_THEMES = (
    Theme(
        name=COLOUR_BLIND,
        primary="#56B4E9",
        secondary="#CC79A7",
        accent="#F0E442",
        warning="#E69F00",
        error="#D55E00",
        success="#009E73",
        foreground="#e8e8e8",
        background="#101214",
        surface="#181b1e",
        panel="#22262a",
    ),
    Theme(
        name=COLOUR_BLIND_LIGHT,
        primary="#0072B2",
        secondary="#CC79A7",
        accent="#8a7d00",
        warning="#b37b00",
        error="#D55E00",
        success="#00785a",
        foreground="#1a1a1a",
        background="#f4f4f2",
        surface="#e9e9e6",
        panel="#dcdcd8",
        dark=False,
    ),
)
"""Themes for colour-blind users, based on the eight-colour palette of Okabe & Ito (2008)."""
VISIBLE_CONTRAST = 0.2
"""Minimum difference in brightness, 0..1, from the screen's background. Without colour, a background that differs more,
such as a scrollbar's thumb, is shown in reverse video."""
ASCII_SYMBOLS: Final = {
    **dict(zip("●■▲◆★✚▼♦", "O#^*@+V&", strict=True)),  # agents (cell_text.GLYPHS)
    **dict(zip("◌✔✗○✓⚑", ".vXov!", strict=True)),  # outcomes of decisions, and an operator's command
    **dict(zip("→←↑↓⇒▸◂▴▾⏎␣", "><^v>><^v<_", strict=True)),
    **dict(zip("×÷±≤≥≈≠−·•…–—", "x/~<>~!-.*.--", strict=True)),
    **dict(zip("“”\u2018\u2019«»‖¶§°", "\"\"''<>\"Ps'", strict=True)),
    **dict(zip("αβγδελμπρσΔΣ", "abgdelmprsDS", strict=True)),
    **dict(zip("█▓▒░▌▐┊┆╎━═─╌", "#%:.||:::==--", strict=True)),
}
"""Symbol → ASCII replacement. No two agents, and no two chart markers, share a replacement."""
BRAILLE, BOX, BLOCKS = range(0x2800, 0x2900), range(0x2500, 0x2580), range(0x2580, 0x25A0)
VERTICAL_SYMBOLS: Final = frozenset("│┃║╷╵╽╿")
"""Box-drawing symbols that become a bar. The others, such as corners and crossings, become a plus."""


@dataclass(frozen=True)
class Appearance:
    """Settings for colours and symbols, from the user or the terminal."""

    light: bool = False
    colour_blind: bool = False
    ascii: bool = False

    @property
    def theme(self) -> str:
        dark, light = (COLOUR_BLIND, COLOUR_BLIND_LIGHT) if self.colour_blind else (DARK, LIGHT)
        return light if self.light else dark

    def filters(self, default_filters: Sequence[LineFilter], no_colour: bool) -> list[LineFilter]:
        """Return the filters for every line. `no_colour` drops Textual's filters, because they blend colours."""
        return [*([_COLOUR_REMOVER] if no_colour else default_filters), *([_ASCII_REPLACER] if self.ascii else [])]


def needs_ascii() -> bool:
    """Return whether the terminal supports only ASCII, according to its locale or type."""
    charset = locale.getpreferredencoding(False).lower().replace("-", "")
    return not charset.startswith("utf") or os.environ.get("TERM") in ("linux", "dumb", "vt100")


class AsciiReplacer(LineFilter):
    """Replaces every non-ASCII character, including frames and scrollbars, with a similar one."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            segment
            if segment.text.isascii()
            else Segment("".join(map(_ascii, segment.text)), segment.style, segment.control)
            for segment in segments
        ]


@lru_cache(4096)
def _ascii(char: str) -> str:
    if char.isascii():
        return char
    if char in ASCII_SYMBOLS:
        return ASCII_SYMBOLS[char]
    code = ord(char)
    if code in BRAILLE:
        return _ascii_dots(code - 0x2800)
    if code in BOX:
        return "|" if char in VERTICAL_SYMBOLS else "+"
    if code in BLOCKS:
        return " "  # the ends of scrollbars
    base_character = unicodedata.normalize("NFKD", char)[:1]
    width = cell_len(char)
    return base_character if base_character.isascii() and width == 1 else "?" * width


def _ascii_dots(dots: int) -> str:
    """Return the ASCII character that looks most like the dots of a cell: a slope, a bar, or a line at their height."""
    left_rows = [row for row, bit in enumerate((0x01, 0x02, 0x04, 0x40)) if dots & bit]  # bits of the left dots
    right_rows = [row for row, bit in enumerate((0x08, 0x10, 0x20, 0x80)) if dots & bit]
    rows = left_rows + right_rows
    if not rows:
        return " "
    if max(rows) - min(rows) >= 2:
        slope = sum(right_rows) / len(right_rows) - sum(left_rows) / len(left_rows) if left_rows and right_rows else 0.0
        if abs(slope) < 1:
            return "|"
        return "\\" if slope > 0 else "/"
    level = sum(rows) / len(rows)  # 0 for the top row, 3 for the bottom row
    if level < 0.75:
        return "'"
    return "-" if level < 2.25 else "."


class ColourRemover(LineFilter):
    """Removes all colour for NO_COLOR (no-color.org), but keeps bold and dim. Textual's own filter leaves greys."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        brightness = background.brightness
        return [
            Segment(segment.text, _colourless(segment.style, brightness) if segment.style else None, segment.control)
            for segment in segments
        ]


@lru_cache(1024)
def _colourless(style: Style, brightness: float) -> Style:
    """Return the style without colour on a screen whose background has this brightness."""
    fill = style.bgcolor
    is_visible = fill is not None and abs(Color.from_rich_color(fill).brightness - brightness) > VISIBLE_CONTRAST
    return style + Style.from_color(_DEFAULT, _DEFAULT) + Style(reverse=bool(style.reverse) or is_visible)


_DEFAULT = RichColor.parse("default")
_ASCII_REPLACER, _COLOUR_REMOVER = AsciiReplacer(), ColourRemover()
