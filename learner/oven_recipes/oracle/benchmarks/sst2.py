"""SST-2 (Socher et al. 2013) as GLUE publishes it: is the feeling of a sentence positive? TSV `sentence, label`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

from oven_recipes.oracle.benchmark_templates import DEGREES, FEELINGS, REVIEW_FRAMES, REVIEWED
from oven_recipes.oracle.benchmarks.benchmark import Benchmark, Labelled
from oven_recipes.oracle.benchmarks.published_files import label_of, table


def _read(path: Path) -> Iterator[Labelled]:
    labels = {"1": frozenset({"positive"}), "0": frozenset({"negative"})}
    for line, row in table(path, ("sentence", "label"), tabs=True):
        yield Labelled(
            row["sentence"].strip(), label_of(path, f"line {line}", row["label"], labels), f"{path}, line {line}"
        )


def _templates() -> Iterator[Labelled]:
    for label, words in FEELINGS.items():
        for frame, thing, degree, word in product(REVIEW_FRAMES, REVIEWED, DEGREES, words):
            yield Labelled(frame.format(thing, degree, word), frozenset({label}))


BENCHMARK = Benchmark("sst2", ("**/dev.tsv", "**/train.tsv"), "GLUE TSV with sentence, label", _read, _templates)
