"""Text for a terminal: wrapped, and cleaned of what would steer it. Agents and learners choose most of it."""

from __future__ import annotations

import re
import textwrap

# Control characters (a line break would forge a line), marks that turn the direction of writing or are not seen, tags
# that are not seen either, and halves of characters, which no terminal takes.
_STEERING = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f]+"
)


def clean(text: str) -> str:
    """One line of it, each run of such characters a space."""
    return _STEERING.sub(" ", text)


def say(*lines: str, flush: bool = False) -> None:
    """Print lines that hold what came from elsewhere: all that a command prints of a log goes through here."""
    for line in lines:
        print(clean(line), flush=flush)


COLUMNS = 80


def wrapped(text: str, *, hang: int = 2) -> list[str]:
    """`text` in lines of at most 80 columns, those after the first indented by `hang` more than it is. A word that is
    longer stays whole: paths and commands are to be copied."""
    indent = len(text) - len(text.lstrip())
    return textwrap.wrap(
        clean(text).strip(),
        COLUMNS,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + hang),
        break_long_words=False,
        break_on_hyphens=False,
    )
