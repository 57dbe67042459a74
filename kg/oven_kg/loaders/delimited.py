"""Triples as CSV and TSV, with a line of column names first."""

from __future__ import annotations

from collections.abc import Iterator

from oven_kg.loaders.arrow_columns import numbers, texts
from oven_kg.loaders.batches import Batch, Edges, Options
from oven_kg.loaders.column_names import columns
from oven_kg.loaders.separated_values import CSV, TSV, Layout, batches, header
from oven_kg.loaders.source import Input


def comma(held: Input, options: Options) -> Iterator[Batch]:
    """Values in quotes may hold commas and line ends. Raises ConfigError with the line."""
    return _triples(held, CSV)


def tab(held: Input, options: Options) -> Iterator[Batch]:
    """A quote is a letter as any other, as IANA's registration of text/tab-separated-values has it. Raises ConfigError
    with the line."""
    return _triples(held, TSV)


def _triples(held: Input, layout: Layout) -> Iterator[Batch]:
    subject, relation, object_, weight = columns(held.path, header(held, layout))
    wanted = [subject, relation, object_, *([weight] if weight else [])]
    for batch, where in batches(held, layout, wanted):
        yield Edges(
            texts(held, batch.column(subject), where, "subject"),
            texts(held, batch.column(relation), where, "relation"),
            texts(held, batch.column(object_), where, "object"),
            numbers(held, batch.column(weight), where) if weight else None,
            where,
        )
