"""Print and wrap text for terminals, without control characters that agents or learners may have written."""

from __future__ import annotations

import re
import textwrap

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
