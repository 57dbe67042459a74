"""XML read as a stream by expat, without document types, and bounded in depth and in what one element may hold."""

from __future__ import annotations

from typing import Final
from xml.parsers import expat

from oven_core.errors import ConfigError
from oven_kg.loaders.source import Input

DEPTH: Final = 64
"""Elements within each other."""
SILENCE: Final = 4 * 2**20
"""Bytes without the beginning or the end of an element."""


class XmlEvents:
    """Subclasses override `start`, `end` and `text`."""

    def __init__(self, held: Input, what: str) -> None:
        """`what`: the format's name, for messages."""
        self.held, self._what = held, what
        self._parser = expat.ParserCreate(namespace_separator="}")
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self.text
        # Entities could blow up a small file, or name other files: who needs none loses nothing.
        self._parser.StartDoctypeDeclHandler = self._refuse
        self._parser.EntityDeclHandler = self._refuse
        self._depth = 0
        self._silent = 0

    @property
    def line(self) -> int:
        return self._parser.CurrentLineNumber

    @property
    def place(self) -> str:
        return f"{self.held.path}, line {self.line}"

    def feed(self, chunk: bytes, final: bool = False) -> None:
        """Raises ConfigError with the line."""
        self._silent += len(chunk)
        try:
            self._parser.Parse(chunk, final)
        except expat.ExpatError as error:
            cut = "; is the file cut short?" if final else "; write it again with the tool that made it"
            raise ConfigError(
                f"{self.held.path}, line {error.lineno}: it is not {self._what}: {expat.ErrorString(error.code)}{cut}"
            ) from error
        if self._silent > SILENCE:
            raise ConfigError(
                f"{self.place}: more than {SILENCE:,} bytes in one element; {self._what} needs fewer, cut it"
            )

    def start(self, tag: str, attributes: dict[str, str]) -> None: ...

    def end(self, tag: str) -> None: ...

    def text(self, text: str) -> None: ...

    def _refuse(self, *_: object) -> None:
        raise ConfigError(
            f"{self.place} declares a document type or entities; {self._what} needs neither, take them out, e.g. with "
            "`xmllint --noent --dropdtd`"
        )

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self._silent = 0
        self._depth += 1
        if self._depth > DEPTH:
            raise ConfigError(
                f"{self.place} has elements {self._depth} deep; {self._what} needs no more than {DEPTH}, flatten it"
            )
        self.start(tag.rpartition("}")[2], attributes)

    def _end(self, tag: str) -> None:
        self._silent = 0
        self._depth -= 1
        self.end(tag.rpartition("}")[2])
