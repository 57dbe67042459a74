"""Lines for a terminal of 80 columns."""

from __future__ import annotations

import textwrap

from oven_controller.text.sanitization import clean

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
