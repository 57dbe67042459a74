"""Other people's text, made fit to be shown to a judge: what cannot be seen is taken out, what is too long is cut."""

from __future__ import annotations

import json
import re
from typing import Any

HEAD = 6000
"""Characters of a long text that are kept from its beginning."""
TAIL = 2000
"""Characters of it that are kept from its end, where an answer's result is."""

_INVISIBLE = re.compile(
    "["
    "\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f"  # controls, but for tab and line breaks
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\uffa0"  # soft hyphen, joiners, fillers
    "\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff0-\ufffb"  # zero width, bidirectional, annotations
    "\ufe00-\ufe0f\U000e0000-\U000e0fff"  # variation selectors and tags, in which bytes can be smuggled
    "\ud800-\udfff"  # lone surrogates: no UTF-8 can carry them
    "]"
)


def visible(text: str) -> str:
    """`text` without characters that a person would not see."""
    return _INVISIBLE.sub("", text)


def capped(text: str, head: int = HEAD, tail: int = TAIL) -> str:
    """`text`, or its two ends and how much is missing between them."""
    left_out = len(text) - head - tail
    if left_out <= 0:
        return text
    return f"{text[:head]}\n[… {left_out} characters left out …]\n{text[-tail:]}"


def shown(text: str) -> str:
    return capped(visible(text).strip())


def data_block(value: Any) -> str:
    """`value` as JSON between `<data>` marks. The text in it cannot close the block: `<` and `>` are escaped."""
    inside = json.dumps(value, ensure_ascii=False).replace("<", "\\u003c").replace(">", "\\u003e")
    return f"<data>\n{inside}\n</data>"
