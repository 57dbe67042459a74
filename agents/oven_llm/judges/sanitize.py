"""Prepares untrusted text for a judge: removes invisible characters and shortens long texts.

Invisible characters could hide text. However, Persian and Hindi join and separate letters with some of them, and some
emoji contain them. These characters are kept where they affect a visible neighbour."""

from __future__ import annotations

import json
import re
import string
import unicodedata
from typing import Any, Final

MAX_CHARACTERS: Final = 8000
"""Default maximum characters per text. Eight texts of this length are about 20,000 tokens."""
TAIL_SHARE: Final = 0.25
"""Share of the limit for the end of a long text, which usually contains its result."""
MIN_REPETITION_LENGTH: Final = 128
"""Minimum characters of a degenerate repetition. Rows of dashes, numbers such as 1111 and "hahaha" are shorter."""
MAX_PERIOD: Final = 8
"""Maximum characters of a repeated part, e.g. "ab" or "0, 1, ". A task may ask for repeated words, which are longer."""
NOISE_SHARE: Final = 0.5
"""A text is noise if at least this share of its characters are undecodable, unassigned or for private use."""
MIN_NOISE_LENGTH: Final = 16
"""Minimum characters of noise. A short text may contain a few symbols that only a special font can show."""

_INVISIBLE = re.compile(
    "["
    "\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f"  # controls, except tab and line breaks
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\uffa0"  # soft hyphen, joiners, fillers
    "\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff0-\ufffb"  # zero width, bidirectional, annotations
    "\ufe00-\ufe0f\U000e0000-\U000e0fff"  # variation selectors and tags, in which bytes can be smuggled
    "\ud800-\udfff"  # lone surrogates, which UTF-8 cannot encode
    "]"
)
_JOINERS: Final = "\u200c\u200d"
_EMOJI_SELECTORS: Final = "\ufe0e\ufe0f"
_MONGOLIAN_SELECTORS: Final = "\u180b\u180c\u180d\u180f"
_JOINING_SCRIPTS: Final = re.compile("[\u0600-\u08ff\u0900-\u0dff\u0f00-\u109f\u1780-\u18af\ufb50-\ufdff\ufe70-\ufefc]")
"""Arabic, Syriac, the scripts of India, Tibetan, Burmese, Khmer, Mongolian."""
_TAG_OF_LETTER: Final = {ord(letter): 0xE0000 + ord(letter) for letter in string.ascii_lowercase}
_FLAG_TAGS: Final = "gbeng|gbsct|gbwls".translate(_TAG_OF_LETTER)
_FLAGS: Final = re.compile(f"\U0001f3f4(?:{_FLAG_TAGS})\U000e007f")
"""The flags of England, Scotland and Wales, the only ones that are written with tags."""


def visible_text(text: str) -> str:
    """Return `text` without invisible characters, except those that change how visible ones look."""
    pieces, last_end = [], 0
    for flag in _FLAGS.finditer(text):
        pieces += [_INVISIBLE.sub(_keep_if_needed, text[last_end : flag.start()]), flag[0]]
        last_end = flag.end()
    pieces.append(_INVISIBLE.sub(_keep_if_needed, text[last_end:]))
    return "".join(pieces)


def _keep_if_needed(match: re.Match[str]) -> str:
    """Return the invisible character if it affects its neighbours, or an empty string if it does not."""
    character, text, index = match[0], match.string, match.start()
    before, after = text[max(0, index - 1) : index], text[index + 1 : index + 2]
    if character in _JOINERS and _JOINING_SCRIPTS.match(before) and _JOINING_SCRIPTS.match(after):
        return character
    is_keycap = before and before in "#*0123456789" and after == "\u20e3"
    if character in _EMOJI_SELECTORS and (_is_symbol(before) or is_keycap):
        return character
    if character == "\u200d" and _is_symbol(after):  # joins two emoji, the first possibly with a selector
        emoji = text[max(0, index - 2) : index - 1] if before and before in _EMOJI_SELECTORS else before
        return character if _is_symbol(emoji) else ""
    follows_mongolian_letter = "\u1820" <= before <= "\u18aa"
    return character if character in _MONGOLIAN_SELECTORS and follows_mongolian_letter else ""


def _is_symbol(character: str) -> bool:
    """Return whether this is an emoji, another symbol or a skin tone."""
    return bool(character) and (
        unicodedata.category(character) in ("So", "Sm") or "\U0001f3fb" <= character <= "\U0001f3ff"
    )


def shorten(text: str, limit: int = MAX_CHARACTERS) -> str:
    """Return `text`. If it is longer than `limit`, replace its middle with the number of omitted characters."""
    omitted_count = len(text) - limit
    if omitted_count <= 0:
        return text
    tail_length = int(TAIL_SHARE * limit)
    head, tail = text[: limit - tail_length], text[len(text) - tail_length :]
    return f"{head}\n[… {omitted_count} characters omitted …]\n{tail}"


def prepare(text: str, limit: int = MAX_CHARACTERS) -> str:
    """Return the text as a judge sees it."""
    return shorten(visible_text(text).strip(), limit)


def data_block(value: Any) -> str:
    """Return `value` as JSON between `<data>` tags. `<` and `>` are escaped, so no string can close the block."""
    content = json.dumps(value, ensure_ascii=False).replace("<", "\\u003c").replace(">", "\\u003e")
    return f"<data>\n{content}\n</data>"


def is_degenerate(text: str, prompt: str = "") -> bool:
    """Return whether a prepared text contains nothing to judge, so that it scores 0 without a call. A degenerate text
    is a long repetition of a few characters, or consists mostly of unreadable characters. Short texts, repetitive prose
    and texts from the prompt are never degenerate."""
    return (_is_repetition(text) or _is_noise(text)) and text not in prompt


def _is_repetition(text: str) -> bool:
    if len(text) < MIN_REPETITION_LENGTH:
        return False
    # A repetition is equal to itself when it is shifted by its period.
    return any(text.startswith(text[period:]) for period in range(1, MAX_PERIOD + 1))


def _is_noise(text: str) -> bool:
    if len(text) < MIN_NOISE_LENGTH:
        return False
    unreadable = [char for char in text if char == "\ufffd" or unicodedata.category(char) in ("Cn", "Co")]
    return len(unreadable) >= NOISE_SHARE * len(text)
