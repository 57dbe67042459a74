"""Load RDF in four formats as a stream, with pyoxigraph. It fetches nothing from the network."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final

from oven_core.errors import ConfigError, reason
from oven_kg.loaders.graph_batches import BATCH_ROWS, Batch, Column, EdgeBatch, LoaderOptions, SkippedRows
from oven_kg.loaders.input_file import HEAD_BYTES, MAX_JSON_BYTES, GraphFile, read_lines
from oven_kg.loaders.xml_events import XmlEvents

MAX_STATEMENT_BYTES: Final = 4 * 2**20
"""Maximum number of bytes without a complete statement. The parser buffers unparsed input, and a statement in Turtle
may span many lines."""
MAX_DEPTH: Final = 10_000
"""Maximum nesting of brackets in Turtle. The parser needs about 100 bytes per level."""
_TOKEN_PATTERN: Final = (
    rb'"""(?:[^"\\]|\\.|"{1,2}(?!"))*+"""|' + rb"'''(?:[^'\\]|\\.|'{1,2}(?!'))*+'''|"
    rb'"(?!"")(?:[^"\\\n]|\\.)*+"|' + rb"'(?!'')(?:[^'\\\n]|\\.)*+'|<[^<>\s]*+>|<<|#[^\n]*+\n|\\."
)
"""A string, an IRI, a comment or an escaped character of Turtle (W3C 2014). Brackets inside them are not syntax."""
TOKEN: Final = re.compile(_TOKEN_PATTERN, re.S)
COMPLETE_TOKENS: Final = re.compile(rb"(?:[^\"'<#\\]++|" + _TOKEN_PATTERN + rb")*+", re.S)
"""Text up to the first token that is not complete."""
NOT_BRACKETS: Final = re.compile(rb"[^()\[\]]++")


class _GuardedFile(io.RawIOBase):
    """A file for the parser that raises ConfigError for content that would make the parser's buffer too large."""

    def __init__(
        self, graph_file: GraphFile, file: BinaryIO, rdf_format: str, count_statements: Callable[[], int]
    ) -> None:
        self._graph_file, self._file, self._rdf_format = graph_file, file, rdf_format
        self._count_statements, self._last_count = count_statements, count_statements()
        self._statement_bytes = self._total = 0
        self._xml = XmlEvents(graph_file, "RDF/XML") if rdf_format == "RDF_XML" else None
        self._brackets = BracketDepth(graph_file.path) if rdf_format == "TURTLE" else None

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        chunk = self._file.read(HEAD_BYTES if size < 0 else min(size, HEAD_BYTES))
        self._total += len(chunk)
        if (count := self._count_statements()) != self._last_count:
            self._last_count, self._statement_bytes = count, 0
        self._statement_bytes += len(chunk)
        self._check(chunk)
        return chunk

    def _check(self, chunk: bytes) -> None:
        path = self._graph_file.path
        if self._xml:
            self._xml.feed(chunk, final=not chunk)
        elif self._rdf_format == "JSON_LD":
            if self._total > MAX_JSON_BYTES:
                raise ConfigError(
                    f"{path} has more than {MAX_JSON_BYTES:,} bytes of JSON-LD; convert it to N-Triples, which is read "
                    "as a stream"
                )
        elif self._statement_bytes > MAX_STATEMENT_BYTES:
            raise ConfigError(
                f"{path} has {MAX_STATEMENT_BYTES:,} bytes without a statement, after statement {self._last_count}; "
                "shorten or remove them"
            )
        if self._brackets:
            self._brackets.feed(chunk)


class BracketDepth:
    """A counter of open brackets in Turtle, outside of strings, IRIs and comments."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._incomplete_token = b""
        """The end of the last chunk, which may be an unfinished token."""
        self.depth = 0

    def feed(self, chunk: bytes) -> None:
        """Count the brackets of a chunk. Raises ConfigError if a limit is exceeded."""
        text = self._incomplete_token + chunk
        # Quotes at the end may be the beginning of three quotes.
        match = COMPLETE_TOKENS.match(text, 0, len(text.rstrip(b"\"'")))
        end = match.end() if match else 0
        self._incomplete_token = text[end:]
        brackets = NOT_BRACKETS.sub(b"", TOKEN.sub(b"", text[:end]))
        self.depth += brackets.count(b"(") + brackets.count(b"[") - brackets.count(b")") - brackets.count(b"]")
        if self.depth > MAX_DEPTH or len(self._incomplete_token) > MAX_STATEMENT_BYTES:
            raise ConfigError(
                f"{self._path} has more than {MAX_DEPTH:,} nested brackets, or a string of more than "
                f"{MAX_STATEMENT_BYTES:,} bytes; convert it to N-Triples"
            )


def _load(graph_file: GraphFile, options: LoaderOptions, rdf_format: str) -> Iterator[Batch]:
    """Load RDF. Nodes are named by their IRIs and relations by their local names. Blank nodes are numbered per file.
    Statements about literals are skipped."""
    try:
        import pyoxigraph
    except ImportError as error:
        raise ConfigError(f'{graph_file.path}: RDF needs pyoxigraph: `pip install "oven-controller[rdf]"`') from error
    node_types = (pyoxigraph.NamedNode, pyoxigraph.BlankNode)
    blank_names: dict[str, str] = {}
    local_names: dict[str, str] = {}

    def node_name(term: Any) -> str:
        if isinstance(term, pyoxigraph.BlankNode):
            return blank_names.setdefault(term.value, f"_:{graph_file.path.name}.{len(blank_names) + 1}")
        return str(term.value)

    def relation_name(iri: str) -> str:
        """Return the predicate's local name, or its whole IRI if another vocabulary has the same name."""
        local_name = re.split("[#/:]", iri)[-1] or iri
        return local_name if local_names.setdefault(local_name, iri) == iri else iri

    statement_count = skipped = 0
    rows: list[tuple[str, str, str, int]] = []
    with graph_file.open() as file:
        guarded_file: Any = _GuardedFile(graph_file, file, rdf_format, lambda: statement_count)
        try:
            statements = pyoxigraph.parse(guarded_file, getattr(pyoxigraph.RdfFormat, rdf_format))
            for subject, predicate, target, _ in statements:
                statement_count += 1
                if isinstance(target, node_types) and isinstance(subject, node_types):
                    relation = relation_name(predicate.value)
                    rows.append((node_name(subject), relation, node_name(target), statement_count))
                else:
                    skipped += 1
                if len(rows) >= BATCH_ROWS:
                    yield _create_batch(graph_file, rdf_format, rows)
                    rows = []
        except (SyntaxError, ValueError, OSError, MemoryError) as error:  # MemoryError: a very long token
            if isinstance(error, ConfigError):
                raise
            raise _syntax_error(graph_file, error) from error
    if rows:
        yield _create_batch(graph_file, rdf_format, rows)
    if skipped:
        yield SkippedRows("statements about literals", skipped)


def _create_batch(graph_file: GraphFile, rdf_format: str, rows: list[tuple[str, str, str, int]]) -> EdgeBatch:
    sources, relations, targets, numbers = zip(*rows, strict=True)

    def locate(row: int) -> str:
        if rdf_format != "N_TRIPLES":
            return f"statement {numbers[row]}"
        all_lines = read_lines(graph_file, MAX_STATEMENT_BYTES)
        statement_lines = (line for line, text in all_lines if not text.lstrip().startswith(b"#"))
        return f"line {next(islice(statement_lines, numbers[row] - 1, None))}"

    return EdgeBatch(
        Column.from_distinct(sources), Column.from_repeated(relations), Column.from_distinct(targets), None, locate
    )


def _syntax_error(graph_file: GraphFile, error: Exception) -> ConfigError:
    line = getattr(error, "lineno", None)
    problem = reason(error).removesuffix(f" (line {line})")
    return ConfigError(
        f"{graph_file.path}{f', line {line}' if line else ''} is not valid RDF: {problem[:200]}; fix it, or name the "
        "format with --format"
    )


load_ntriples = partial(_load, rdf_format="N_TRIPLES")
load_turtle = partial(_load, rdf_format="TURTLE")
load_rdfxml = partial(_load, rdf_format="RDF_XML")
load_jsonld = partial(_load, rdf_format="JSON_LD")
