"""RDF in its six usual forms, read by pyoxigraph as a stream; nothing is fetched."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

from oven_core.errors import ConfigError, reason
from oven_kg.loaders.batches import BATCH, Batch, Column, Edges, LeftOut, Options
from oven_kg.loaders.source import HEAD, Input, lines
from oven_kg.loaders.xml_events import XmlEvents

SILENCE: Final = 4 * 2**20
"""Bytes without a statement: the parser keeps what it has not understood, and a line has no end of its own."""
DEPTH: Final = 10_000
"""Brackets of Turtle within each other; the parser takes some 100 bytes for each."""
JSON_BYTES: Final = 64 * 2**20
"""Of a JSON-LD file, which may have to be read whole before its first statement."""
_TOKEN: Final = (
    rb'"""(?:[^"\\]|\\.|"{1,2}(?!"))*+"""|' + rb"'''(?:[^'\\]|\\.|'{1,2}(?!'))*+'''|"
    rb'"(?!"")(?:[^"\\\n]|\\.)*+"|' + rb"'(?!'')(?:[^'\\\n]|\\.)*+'|<[^<>\s]*+>|<<|#[^\n]*+\n|\\."
)
"""A text, an IRI, a comment or an escaped letter of Turtle: what may hold brackets that are none (W3C 2014)."""
TOKEN: Final = re.compile(_TOKEN, re.S)
LEXEMES: Final = re.compile(rb"(?:[^\"'<#\\]++|" + _TOKEN + rb")*+", re.S)
"""All that is complete of a piece; the rest waits for the next one."""
NO_BRACKET: Final = re.compile(rb"[^()\[\]]++")


class _Watched(io.RawIOBase):
    """The file as the parser reads it. Raises ConfigError for what would make the parser keep ever more."""

    def __init__(self, held: Input, file: BinaryIO, form: str, progress: Callable[[], object]) -> None:
        self._held, self._file, self._form = held, file, form
        self._progress, self._seen = progress, progress()
        self._silent = self._total = 0
        self._xml = XmlEvents(held, "RDF/XML") if form == "RDF_XML" else None
        self._nesting = Nesting(held.path) if form in ("TURTLE", "TRIG") else None

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        piece = self._file.read(HEAD if size < 0 else min(size, HEAD))
        self._total += len(piece)
        if (seen := self._progress()) != self._seen:
            self._seen, self._silent = seen, 0
        self._silent += len(piece)
        self._check(piece)
        return piece

    def _check(self, piece: bytes) -> None:
        path = self._held.path
        if self._xml:
            self._xml.feed(piece, final=not piece)
        elif self._form == "JSON_LD":
            if self._total > JSON_BYTES:
                raise ConfigError(
                    f"{path} has more than {JSON_BYTES:,} bytes of JSON-LD; convert it to N-Triples, which is a stream"
                )
        elif self._silent > SILENCE:
            raise ConfigError(
                f"{path} has {SILENCE:,} bytes without a statement, after statement {self._seen}; cut them, or leave "
                "them out"
            )
        if self._nesting:
            self._nesting.feed(piece)


class Nesting:
    """How deep the brackets of Turtle are within each other, outside of texts, IRIs and comments."""

    def __init__(self, path: Path) -> None:
        self._path, self._rest = path, b""
        self.depth = 0

    def feed(self, piece: bytes) -> None:
        text = self._rest + piece
        # Two quotes of three are not an empty text: those at the end may continue in the next piece.
        whole = LEXEMES.match(text, 0, len(text.rstrip(b"\"'")))
        end = whole.end() if whole else 0
        self._rest = text[end:]
        brackets = NO_BRACKET.sub(b"", TOKEN.sub(b"", text[:end]))
        self.depth += sum(map(brackets.count, (b"(", b"["))) - sum(map(brackets.count, (b")", b"]")))
        if self.depth > DEPTH or len(self._rest) > SILENCE:
            raise ConfigError(
                f"{self._path} has more than {DEPTH:,} brackets within each other, or a text of more than {SILENCE:,} "
                "bytes; write it as N-Triples"
            )


def _statements(held: Input, options: Options, form: str) -> Iterator[Batch]:
    """IRIs by their whole text, blank nodes by their number in the file; literals are left out."""
    try:
        import pyoxigraph
    except ImportError as error:
        raise ConfigError(f'{held.path}: RDF needs pyoxigraph: `pip install "oven-controller[rdf]"` has it') from error
    iri: Any = pyoxigraph.NamedNode
    blank: Any = pyoxigraph.BlankNode
    sources: list[str] = []
    relations: list[str] = []
    targets: list[str] = []
    numbers: list[int] = []
    blanks: dict[str, str] = {}

    def name(term: Any) -> str:
        if type(term) is iri:
            return str(term.value)
        return blanks.setdefault(term.value, f"_:{held.path.name}.{len(blanks) + 1}")

    number = left_out = 0
    with held.open() as file:
        watched: Any = _Watched(held, file, form, lambda: number)
        try:
            for subject, predicate, target, _ in pyoxigraph.parse(watched, getattr(pyoxigraph.RdfFormat, form)):
                number += 1
                if not (type(target) is iri or type(target) is blank) or not (
                    type(subject) is iri or type(subject) is blank
                ):
                    left_out += 1
                    continue
                sources.append(subject.value if type(subject) is iri else name(subject))
                relations.append(predicate.value)
                targets.append(target.value if type(target) is iri else name(target))
                numbers.append(number)
                if len(numbers) >= BATCH:
                    yield _batch(held, form, sources, relations, targets, numbers)
                    sources, relations, targets, numbers = [], [], [], []
        except (SyntaxError, ValueError, OSError, MemoryError) as error:  # the last is said of a long token
            if isinstance(error, ConfigError):
                raise
            raise _explained(held, error) from error
    if numbers:
        yield _batch(held, form, sources, relations, targets, numbers)
    if left_out:
        yield LeftOut("statements about literals", left_out)


def _batch(
    held: Input, form: str, sources: list[str], relations: list[str], targets: list[str], numbers: list[int]
) -> Edges:
    def where(row: int) -> str:
        if form in ("N_TRIPLES", "N_QUADS"):
            told = (line for line, text in lines(held, SILENCE) if not text.lstrip().startswith(b"#"))
            return f"line {next(line for count, line in enumerate(told, 1) if count == numbers[row])}"
        return f"statement {numbers[row]}"

    return Edges(Column.distinct(sources), Column.of(relations), Column.distinct(targets), None, where)


def _explained(held: Input, error: Exception) -> ConfigError:
    line = getattr(error, "lineno", None)
    problem = reason(error).removesuffix(f" (line {line})")
    return ConfigError(
        f"{held.path}{f', line {line}' if line else ''} is not RDF of its form: {problem[:200]}; mend it, or give the "
        "form with --format"
    )


ntriples = partial(_statements, form="N_TRIPLES")
nquads = partial(_statements, form="N_QUADS")
turtle = partial(_statements, form="TURTLE")
trig = partial(_statements, form="TRIG")
rdfxml = partial(_statements, form="RDF_XML")
jsonld = partial(_statements, form="JSON_LD")
