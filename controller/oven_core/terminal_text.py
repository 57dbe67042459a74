"""Print, wrap and align text for terminals, without control characters that agents or learners may have written."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Final

# Control characters (a line break could forge a line), marks that change the writing direction or are invisible,
# invisible tags, and surrogates, which no terminal accepts.
_CONTROL_CHARACTERS = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f]+"
)


def clean(text: str) -> str:
    """Return the text as one line, with each sequence of control characters replaced by a space."""
    return _CONTROL_CHARACTERS.sub(" ", text)


def say(*lines: str, flush: bool = False) -> None:
    """Print lines with untrusted text. Commands print all text from logs with this function."""
    for line in lines:
        print(clean(line), flush=flush)


def warn(line: str) -> None:
    """Print a warning on stderr."""
    print(f"warning: {clean(line)}", file=sys.stderr, flush=True)


def counted(number: int, noun: str) -> str:
    """Return a number and its noun in the singular or plural, for example "1 vote" or "2 votes"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def shorten(text: str, columns: int) -> str:
    """Cut the text after a word, and append "…", so that it has at most `columns` characters."""
    if len(text) <= columns:
        return text
    head = text[: max(0, columns - 1)]
    if not text[len(head)].isspace():
        head = head.rpartition(" ")[0] or head  # a single long word is cut anywhere
    return head.rstrip(" ,;:") + "…"


COLUMNS = 80
"""Maximum width of wrapped text."""


def wrapped(text: str, *, hang: int = 2) -> list[str]:
    """Wrap `text` to 80 columns. All lines but the first are indented by `hang` more columns than the first.

    Words longer than a line are not broken, so that paths and commands can be copied."""
    indent = len(text) - len(text.lstrip())
    return textwrap.wrap(
        clean(text).strip(),
        COLUMNS,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + hang),
        break_long_words=False,
        break_on_hyphens=False,
    )


COLUMN_GAP: Final = "  "
MIN_CELL: Final = 12
"""Minimum width of a column whose cells are wrapped."""


def table_lines(columns: Sequence[str], rows: Iterable[Sequence[str]], width: int) -> list[str]:
    """Align rows under the names of their columns. If the lines would exceed `width`, wrap the cells of the widest
    columns, but never those of the first."""
    cells = [columns, *([clean(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    gaps = len(COLUMN_GAP) * (len(widths) - 1)
    while sum(widths) + gaps > width and (widest := max(widths[1:], default=0)) > MIN_CELL:
        widths[widths.index(widest, 1)] -= 1
    lines: list[str] = []
    for row in cells:
        parts = [textwrap.wrap(cell, size, break_on_hyphens=False) for cell, size in zip(row, widths, strict=True)]
        rows_of_parts = zip_longest(*parts, fillvalue="")
        lines += (COLUMN_GAP.join(map(str.ljust, line, widths)).rstrip() for line in rows_of_parts)
    return lines
