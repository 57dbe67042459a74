"""Untrusted text, prepared for a judge: invisible characters are removed and long texts are shortened.

Some invisible characters do real work: Persian and Hindi join and separate letters with them, and some emoji consist of
several characters. Those stay where they do that work, one at a time. Elsewhere they can carry a hidden text.
"""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any, Final

LIMIT: Final = 8000
"""Default maximum characters per text. Eight texts of this length are about 20,000 tokens."""
TAIL_SHARE: Final = 0.25
"""Share of the limit for the end of a long text, where its result is; the rest shows its beginning."""
MIN_REPEATED: Final = 128
"""Characters from which repetition is degenerate. Rows of dashes, a long number of ones or a laugh are shorter."""
MAX_PERIOD: Final = 8
"""Characters of the repeated part: "ab", "haha ", "0, 1, ". A repeated word or sentence may have been requested."""
MAX_NOISE: Final = 0.5
"""Share of characters that are not writing: replacements of undecodable bytes, unassigned and private ones."""
MIN_NOISY: Final = 16
"""Characters from which noise is degenerate: a few unknown symbols may be due to a font."""

_INVISIBLE = re.compile(
    "["
    "\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f"  # controls, except tab and line breaks
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
    + "|".join("".join(chr(0xE0000 + ord(letter)) for letter in region) for region in ("gbeng", "gbsct", "gbwls"))
    + ")\U000e007f"
)
"""The flags of England, Scotland and Wales, the only ones that are spelled in tags."""


def visible(text: str) -> str:
    """Remove the characters that a person would not see, except those that shape visible ones."""
    parts, end = [], 0
    for flag in _FLAGS.finditer(text):
        parts += [_INVISIBLE.sub(_kept_shaper, text[end : flag.start()]), flag[0]]
        end = flag.end()
    return "".join([*parts, _INVISIBLE.sub(_kept_shaper, text[end:])])


def _kept_shaper(match: re.Match[str]) -> str:
    """The character if it shapes its neighbours, otherwise nothing."""
    character, text, index = match[0], match.string, match.start()
    before, after = text[max(0, index - 1) : index], text[index + 1 : index + 2]
    if character in _JOINERS and _JOINING.match(before) and _JOINING.match(after):
        return character
    keycap = before and before in "#*0123456789" and after == "\u20e3"
    if character in _EMOJI_FORM and (_is_symbol(before) or keycap):
        return character
    if character == "\u200d" and _is_symbol(after):
        shaped = text[max(0, index - 2) : index - 1] if before and before in _EMOJI_FORM else before
        return character if _is_symbol(shaped) else ""
    return character if character in _MONGOLIAN_FORMS and "\u1820" <= before <= "\u18aa" else ""


def _is_symbol(character: str) -> bool:
    """Emoji are symbols, and skin tones modify one."""
    return bool(character) and (
        unicodedata.category(character) in ("So", "Sm") or "\U0001f3fb" <= character <= "\U0001f3ff"
    )


def capped(text: str, limit: int = LIMIT) -> str:
    """Return the whole text, or its beginning and end with the number of characters omitted between them."""
    left_out = len(text) - limit
    if left_out <= 0:
        return text
    tail = int(TAIL_SHARE * limit)
    return f"{text[: limit - tail]}\n[… {left_out} characters left out …]\n{text[len(text) - tail :]}"


def shown(text: str, limit: int = LIMIT) -> str:
    """Return the text as a judge sees it."""
    return capped(visible(text).strip(), limit)


def data_block(value: Any) -> str:
    """`value` as JSON between `<data>` tags. Text in it cannot close the block, because `<` and `>` are escaped."""
    inside = json.dumps(value, ensure_ascii=False).replace("<", "\\u003c").replace(">", "\\u003e")
    return f"<data>\n{inside}\n</data>"


def is_degenerate(text: str, prompt: str = "") -> bool:
    """Whether a text (as shown) has nothing to judge, so that it scores 0 without a call.

    A degenerate text repeats a few characters over and over, at a length that no answer reaches by chance, or consists
    mostly of characters that are not writing. Short texts are never degenerate. Neither is repetitive prose, which a
    judge can recognise, nor text that the prompt contains.
    """
    return (_repeats(text) or _is_noise(text)) and text not in prompt


def _repeats(text: str) -> bool:
    return len(text) >= MIN_REPEATED and any(text.startswith(text[period:]) for period in range(1, MAX_PERIOD + 1))


def _is_noise(text: str) -> bool:
    if len(text) < MIN_NOISY:
        return False
    unwritten = sum(character == "\ufffd" or unicodedata.category(character) in ("Cn", "Co") for character in text)
    return unwritten >= MAX_NOISE * len(text)
