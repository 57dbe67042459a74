"""SNLI (Bowman et al. 2015): does a hypothesis follow from a premise? JSONL with `gold_label, sentence1, sentence2`.

Entailment is yes and contradiction no; neutral pairs, and pairs without a majority (`-`), are passed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

from oven_recipes.oracle.benchmark_templates import DOINGS, KINDS, PLACES, PREMISES
from oven_recipes.oracle.benchmarks.benchmark import FALSE, TRUE, Benchmark, Labelled, two_sentences
from oven_recipes.oracle.benchmarks.published_files import json_lines, label_of


def _read(path: Path) -> Iterator[Labelled]:
    labels = {"entailment": TRUE, "contradiction": FALSE, "neutral": None, "-": None}
    for line, row in json_lines(path, ("gold_label", "sentence1", "sentence2")):
        if (label := label_of(path, f"line {line}", row["gold_label"], labels)) is not None:
            text = two_sentences(str(row["sentence1"]), str(row["sentence2"]))
            yield Labelled(text, label, f"{path}, line {line}")


def _templates() -> Iterator[Labelled]:
    for frame, (who, kind), doing, place in product(PREMISES, KINDS.items(), DOINGS, PLACES):
        premise = frame.format(who, doing, place)
        for shift in (0, 1 + len(premise) % (len(DOINGS) - 1)):  # 0 says what the premise says
            label = FALSE if shift else TRUE
            other_doing = DOINGS[(DOINGS.index(doing) + shift) % len(DOINGS)]
            other_place = PLACES[(PLACES.index(place) + shift) % len(PLACES)]
            yield Labelled(two_sentences(premise, f"the {kind} is {other_doing}"), label)
            yield Labelled(two_sentences(premise, f"the {kind} is in the {other_place}"), label)


BENCHMARK = Benchmark(
    "snli",
    ("**/*test.jsonl", "**/*dev.jsonl", "**/*.jsonl"),
    "JSONL with gold_label, sentence1, sentence2",
    _read,
    _templates,
)
