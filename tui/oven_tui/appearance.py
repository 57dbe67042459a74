"""The monitor's look: themes, and replacements for colours and signs that a terminal lacks."""

from __future__ import annotations

import locale
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from rich.color import Color as RichColor
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter
from textual.theme import Theme

from oven_tui.model.ascii_text import ascii_text

DARK, LIGHT = "textual-dark", "textual-light"
COLOUR_BLIND, COLOUR_BLIND_LIGHT = "colour-blind", "colour-blind-light"
THEMES = (DARK, LIGHT, COLOUR_BLIND, COLOUR_BLIND_LIGHT)
"""In the order in which ctrl+t cycles through them."""
OWN_THEMES = (
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
"""Eight colours that stay distinct with every common colour blindness (Okabe & Ito 2008)."""
SHOWN = 0.2
"""Difference in brightness from which a background carries information, such as the position of a scrollbar."""


@dataclass(frozen=True)
class Appearance:
    """The user's or the terminal's choice of colours and signs."""

    light: bool = False
    colour_blind: bool = False
    ascii: bool = False

    @property
    def theme(self) -> str:
        return THEMES[2 * self.colour_blind + self.light]

    def filters(self, usual: Sequence[LineFilter], no_colour: bool) -> list[LineFilter]:
        """The filters for every line. Without colour, Textual's usual filters are removed because they mix colours."""
        return [*([_COLOURLESS] if no_colour else usual), *([_ASCII] if self.ascii else [])]


def needs_ascii() -> bool:
    """Return whether the terminal shows nothing beyond ASCII, by its locale or because it is the kernel's console."""
    charset = locale.getpreferredencoding(False).lower().replace("-", "")
    return not charset.startswith("utf") or os.environ.get("TERM") in ("linux", "dumb", "vt100")


class Ascii(LineFilter):
    """Replaces every sign beyond ASCII with one that looks like it, frames and scrollbars included."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            segment if segment.text.isascii() else Segment(ascii_text(segment.text), segment.style, segment.control)
            for segment in segments
        ]


class Colourless(LineFilter):
    """Removes all colour, as NO_COLOR asks (no-color.org). Bold, dim and reverse stay. Textual's own filter makes
    greys."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        base = background.brightness
        return [
            Segment(segment.text, _colourless(segment.style, base) if segment.style else None, segment.control)
            for segment in segments
        ]


@lru_cache(1024)
def _colourless(style: Style, base: float) -> Style:
    back = style.bgcolor
    stands_out = back is not None and abs(Color.from_rich_color(back).brightness - base) > SHOWN
    return style + Style.from_color(_DEFAULT, _DEFAULT) + Style(reverse=bool(style.reverse) or stands_out)


_DEFAULT = RichColor.parse("default")
_ASCII, _COLOURLESS = Ascii(), Colourless()
