"""Singular or plural, as in Activation Oracles (Karvonen et al. 2025, arXiv 2512.15674): CSV `sentence,n_subjects`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

from oven_recipes.oracle.benchmark_templates import NOUNS, PLACES, STATES
from oven_recipes.oracle.benchmarks.benchmark import Benchmark, Labelled
from oven_recipes.oracle.benchmarks.published_files import label_of, table


def _read(path: Path) -> Iterator[Labelled]:
    labels = {"single": frozenset({"one subject"}), "multiple": frozenset({"several subjects"})}
    for line, row in table(path, ("sentence", "n_subjects")):
        yield Labelled(
            row["sentence"], label_of(path, f"line {line}", row["n_subjects"], labels), f"{path}, line {line}"
        )


def _templates() -> Iterator[Labelled]:
    for (nth, (one, several)), state, place in product(enumerate(NOUNS), STATES, PLACES):
        other = NOUNS[(nth + 1 + len(state + place) % (len(NOUNS) - 1)) % len(NOUNS)][0]
        for frame in ("the {} {} {} in the {}", "in the {3} the {0} {1} {2}"):
            yield Labelled(frame.format(one, "is", state, place), frozenset({"one subject"}))
            yield Labelled(frame.format(several, "are", state, place), frozenset({"several subjects"}))
            yield Labelled(frame.format(f"{one} and the {other}", "are", state, place), frozenset({"several subjects"}))


BENCHMARK = Benchmark("singular_plural", ("**/*.csv",), "CSV with sentence,n_subjects", _read, _templates)
