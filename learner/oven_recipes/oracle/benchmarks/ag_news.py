"""AG News (Zhang et al. 2015, arXiv 1509.01626): which topic is a report about? CSV `Class Index,Title,Description`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

from oven_recipes.oracle.benchmark_templates import DAYS, NEWS
from oven_recipes.oracle.benchmarks.benchmark import Benchmark, Labelled
from oven_recipes.oracle.benchmarks.published_files import label_of, table


def _read(path: Path) -> Iterator[Labelled]:
    topics = ("world politics", "sports", "business", "science")
    labels = {str(number): frozenset({topic}) for number, topic in enumerate(topics, 1)}
    for line, row in table(path, ("Class Index", "Title", "Description")):
        yield Labelled(
            f"{row['Title']}. {row['Description']}",
            label_of(path, f"line {line}", row["Class Index"], labels),
            f"{path}, line {line}",
        )


def _templates() -> Iterator[Labelled]:
    for label, (who, did, what) in NEWS.items():
        for a, b, c, day in product(who, did, what, DAYS):
            yield Labelled(f"the {a} {b} the {c} {day}", frozenset({label}))


BENCHMARK = Benchmark(
    "ag_news", ("**/test.csv", "**/*.csv"), "CSV with Class Index,Title,Description", _read, _templates
)
