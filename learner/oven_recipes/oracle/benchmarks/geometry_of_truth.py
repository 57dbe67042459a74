"""Geometry of Truth (Marks & Tegmark 2023, arXiv 2310.06824): is a statement true? CSV files with `statement,label`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

from oven_recipes.oracle.benchmark_templates import CITIES, CITY_FRAMES, COMPARISONS, LEADS, NUMBERS
from oven_recipes.oracle.benchmarks.benchmark import FALSE, TRUE, Benchmark, Labelled
from oven_recipes.oracle.benchmarks.published_files import label_of, table


def _read(path: Path) -> Iterator[Labelled]:
    for line, row in table(path, ("statement", "label")):
        yield Labelled(
            row["statement"],
            label_of(path, f"line {line}", row["label"], {"1": TRUE, "0": FALSE}),
            f"{path}, line {line}",
        )


def _templates() -> Iterator[Labelled]:
    countries = tuple(CITIES)
    for position, (lead, frame, (nth, cities)) in enumerate(product(LEADS, CITY_FRAMES, enumerate(CITIES.values()))):
        other = countries[(nth + 1 + position % (len(countries) - 1)) % len(countries)]
        for city in cities:
            yield Labelled(lead + frame.format(city, countries[nth]), TRUE)
            yield Labelled(lead + frame.format(city, other), FALSE)
    for lead, (word, sign), (a, b) in product(LEADS, COMPARISONS, product(range(len(NUMBERS)), repeat=2)):
        if a != b:
            true = (a - b) * sign > 0
            yield Labelled(f"{lead}{NUMBERS[a]} is {word} than {NUMBERS[b]}", TRUE if true else FALSE)


BENCHMARK = Benchmark("geometry_of_truth", ("**/*.csv",), "CSV with statement,label", _read, _templates)
