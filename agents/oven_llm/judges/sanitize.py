"""Other people's text, made fit to be shown to a judge: what cannot be seen is taken out, what is too long is cut.

Some characters that cannot be seen by themselves are letters' business: Persian and Hindi join and part letters with
them, and emoji are made of several. They stay where they do that work, one at a time, and nowhere else: in a row, or
after other characters, they can carry a hidden text.
"""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any, Final

LIMIT: Final = 8000
"""Characters of a text that a judge is shown, where nothing else is set: most answers of a training are shorter, and
eight of them are some 20,000 tokens."""
TAIL_SHARE: Final = 0.25
"""Of the limit, for the end of a long text, where an answer's result is; the rest is for its beginning."""

_INVISIBLE = re.compile(
    "["
    "\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f"  # controls, but for tab and line breaks
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\uffa0"  # soft hyphen, joiners, fillers
    "\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff0-\ufffb"  # zero width, bidirectional, annotations
    "\ufe00-\ufe0f\U000e0000-\U000e0fff"  # variation selectors and tags, in which bytes can be smuggled
    "\ud800-\udfff"  # lone surrogates: no UTF-8 can carry them
    "]"
)


_JOINERS: Final = "\u200c\u200d"
_EMOJI_FORM: Final = "\ufe0e\ufe0f"
_MONGOLIAN_FORMS: Final = "\u180b\u180c\u180d\u180f"
_JOINING: Final = re.compile("[\u0600-\u08ff\u0900-\u0dff\u0f00-\u109f\u1780-\u18af\ufb50-\ufdff\ufe70-\ufefc]")
"""Arabic, Syriac, the scripts of India, Tibetan, Burmese, Khmer, Mongolian."""
_FLAGS: Final = re.compile(
    "\U0001f3f4(?:"
    + "|".join("".join(chr(0xE0000 + ord(one)) for one in at) for at in ("gbeng", "gbsct", "gbwls"))
    + ")\U000e007f"
)
"""England, Scotland and Wales: the only ones that are spelt in tags."""


def visible(text: str) -> str:
    """`text` without characters that a person would not see, but for those that shape what is seen."""
    parts, at = [], 0
    for flag in _FLAGS.finditer(text):
        parts += [_INVISIBLE.sub(_shaping, text[at : flag.start()]), flag[0]]
        at = flag.end()
    return "".join([*parts, _INVISIBLE.sub(_shaping, text[at:])])


def _shaping(found: re.Match[str]) -> str:
    """The character where it shapes what is beside it, else nothing."""
    one, text, at = found[0], found.string, found.start()
    before, after = text[max(0, at - 1) : at], text[at + 1 : at + 2]
    if one in _JOINERS and _JOINING.match(before) and _JOINING.match(after):
        return one
    if one in _EMOJI_FORM and (_is_symbol(before) or (before and before in "#*0123456789" and after == "\u20e3")):
        return one
    if one == "\u200d" and _is_symbol(after):
        shaped = text[max(0, at - 2) : at - 1] if before and before in _EMOJI_FORM else before
        return one if _is_symbol(shaped) else ""
    return one if one in _MONGOLIAN_FORMS and "\u1820" <= before <= "\u18aa" else ""


def _is_symbol(one: str) -> bool:
    """Emoji are symbols, and skin tones modify one."""
    return bool(one) and (unicodedata.category(one) in ("So", "Sm") or "\U0001f3fb" <= one <= "\U0001f3ff")


def capped(text: str, limit: int = LIMIT) -> str:
    """`text`, or its two ends and how much is missing between them."""
    left_out = len(text) - limit
    if left_out <= 0:
        return text
    tail = int(TAIL_SHARE * limit)
    return f"{text[: limit - tail]}\n[… {left_out} characters left out …]\n{text[len(text) - tail :]}"


def shown(text: str, limit: int = LIMIT) -> str:
    """`text` as a judge sees it."""
    return capped(visible(text).strip(), limit)


def data_block(value: Any) -> str:
    """`value` as JSON between `<data>` marks. The text in it cannot close the block: `<` and `>` are escaped."""
    inside = json.dumps(value, ensure_ascii=False).replace("<", "\\u003c").replace(">", "\\u003e")
    return f"<data>\n{inside}\n</data>"
