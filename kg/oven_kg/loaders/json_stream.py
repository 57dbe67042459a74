"""The lists of a large JSON object, element by element, so that the file is never in memory whole."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from json.decoder import JSONDecodeError
from typing import Any, BinaryIO, Final

from oven_core.errors import ConfigError
from oven_kg.loaders.source import HEAD, Input, not_utf8

ELEMENT: Final = 4 * 2**20
"""Characters of an element, a key or another value."""
BLANK: Final = re.compile(r"[ \t\r\n]*")


def elements(held: Input, lists: frozenset[str]) -> Iterator[tuple[str, Any]]:
    """(key, element) for each element of the outermost object's lists of these keys. Raises ConfigError."""
    with held.open() as file:
        yield from _Reader(held, file).elements(lists)


class _Reader:
    def __init__(self, held: Input, file: BinaryIO) -> None:
        self._held, self._file = held, file
        self._decoder = json.JSONDecoder()
        self._utf8 = codecs.getincrementaldecoder("utf-8-sig")()
        self._text, self._at, self._ended = "", 0, False
        self._line = 1

    def elements(self, lists: frozenset[str]) -> Iterator[tuple[str, Any]]:
        self._expect("{")
        if self._next() == "}":
            return
        while True:
            key = self._value()
            self._expect(":")
            if key in lists and self._next() == "[":
                self._expect("[")
                if self._next() == "]":
                    self._expect("]")
                else:
                    yield key, self._value()
                    while self._expect(",]") == ",":
                        yield key, self._value()
            else:
                self._value()
            if self._expect(",}") == "}":
                return

    def _more(self) -> bool:
        """Whether there was more to read; what was used goes."""
        if self._ended:
            return False
        self._line += self._text.count("\n", 0, self._at)
        piece = self._file.read(max(HEAD, len(self._text) - self._at))  # doubling what a long element has
        self._ended = not piece
        try:
            self._text = self._text[self._at :] + self._utf8.decode(piece, final=self._ended)
        except UnicodeDecodeError as error:
            raise not_utf8(self._held, f"line {self._line} or later", error.object[error.start]) from None
        self._at = 0
        return True

    def _next(self) -> str:
        """The next character that is not blank, which stays; "" at the end."""
        while True:
            found = BLANK.match(self._text, self._at)
            self._at = found.end() if found else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def _expect(self, marks: str) -> str:
        found = self._next()
        if not found or found not in marks:
            wanted = " or ".join(repr(mark) for mark in marks)
            raise self._wrong(f"{repr(found) if found else 'the end'} stands where {wanted} should")
        self._at += 1
        return found

    def _value(self) -> Any:
        self._next()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except (JSONDecodeError, RecursionError) as error:
                if isinstance(error, RecursionError):
                    raise self._wrong("it is nested too deeply") from None
                if len(self._text) - self._at > ELEMENT:
                    raise self._wrong(f"a value of more than {ELEMENT:,} letters, or {error.msg}") from None
                if not self._more():
                    raise self._wrong(error.msg) from None
                continue
            # A number may go on in what is not read yet.
            if end < len(self._text) or not self._more():
                self._at = end
                return value

    def _wrong(self, problem: str) -> ConfigError:
        line = self._line + self._text.count("\n", 0, self._at)
        return ConfigError(
            f"{self._held.path}, line {line} is not JSON: {problem}; is the file cut short? Write it again with the "
            "tool that made it"
        )
