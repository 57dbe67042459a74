"""Parse XML as a stream with expat. Document types are rejected, and nesting and element size are limited."""

from __future__ import annotations

from typing import Final
from xml.parsers import expat

from oven_core.errors import ConfigError
from oven_kg.loaders.input_file import GraphFile

MAX_DEPTH: Final = 64
MAX_ELEMENT_BYTES: Final = 4 * 2**20
"""Maximum bytes without the start or end of an element."""


class XmlEvents:
    """A base class for XML parsers. It parses chunks, and calls `start`, `end` and `text` of the subclass."""

    def __init__(self, graph_file: GraphFile, format_name: str) -> None:
        self.graph_file, self._format = graph_file, format_name
        self._parser = expat.ParserCreate(namespace_separator="}")
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self.text
        # Entities can make a small file exhaust the memory, or refer to other files. No graph needs them.
        self._parser.StartDoctypeDeclHandler = self._reject
        self._parser.EntityDeclHandler = self._reject
        self._depth = 0
        self._element_bytes = 0

    @property
    def line(self) -> int:
        return self._parser.CurrentLineNumber

    @property
    def location(self) -> str:
        return f"{self.graph_file.path}, line {self.line}"

    def feed(self, chunk: bytes, final: bool = False) -> None:
        """Parse a chunk. Raises ConfigError with the line."""
        self._element_bytes += len(chunk)
        try:
            self._parser.Parse(chunk, final)
        except expat.ExpatError as error:
            remedy = "check whether the file is truncated" if final else "write it again"
            raise ConfigError(
                f"{self.graph_file.path}, line {error.lineno} is not valid {self._format}: "
                f"{expat.ErrorString(error.code)}; {remedy}"
            ) from error
        if self._element_bytes > MAX_ELEMENT_BYTES:
            raise ConfigError(f"{self.location}: more than {MAX_ELEMENT_BYTES:,} bytes in one element; shorten it")

    def start(self, tag: str, attributes: dict[str, str]) -> None: ...

    def end(self, tag: str) -> None: ...

    def text(self, text: str) -> None: ...

    def _reject(self, *_: object) -> None:
        raise ConfigError(
            f"{self.location} declares a document type or entities; {self._format} needs neither, so remove them, e.g. "
            "with `xmllint --noent --dropdtd`"
        )

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self._element_bytes = 0
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ConfigError(
                f"{self.location} nests elements {self._depth} deep; {self._format} needs at most {MAX_DEPTH}, so "
                "flatten it"
            )
        self.start(tag.rpartition("}")[2], attributes)

    def _end(self, tag: str) -> None:
        self._element_bytes = 0
        self._depth -= 1
        self.end(tag.rpartition("}")[2])
