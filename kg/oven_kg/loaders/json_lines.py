"""Load triples from JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from oven_core.errors import ConfigError, reason
from oven_kg.loaders.graph_batches import Batch, EdgeRow, LoaderOptions, to_batches
from oven_kg.loaders.input_file import GraphFile, decode, read_lines
from oven_kg.loaders.triples import parse_edge

MAX_LINE_BYTES: Final = 4 * 2**20
"""Maximum length of a line in bytes. After parsing, the worst line of this length takes 90 MB."""


def load_json_lines(graph_file: GraphFile, options: LoaderOptions) -> Iterator[Batch]:
    """Load one object per line, with a subject, predicate, object and optional weight."""
    return to_batches(_read_edges(graph_file), "line")


def _read_edges(graph_file: GraphFile) -> Iterator[EdgeRow]:
    for number, line in read_lines(graph_file, MAX_LINE_BYTES):
        location = f"{graph_file.path}, line {number}"
        text = decode(graph_file, f"line {number}", line.removeprefix(b"\xef\xbb\xbf"))
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{location} is not valid JSON: {reason(error)}; fix the line") from error
        if not isinstance(values, dict):
            raise ConfigError(f'{location} is not an object; write e.g. {{"subject": …, "predicate": …, "object": …}}')
        yield parse_edge(graph_file.path, values, location, number)
