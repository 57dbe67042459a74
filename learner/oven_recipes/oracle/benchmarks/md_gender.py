"""MD Gender (Dinan et al. 2020, arXiv 2005.00614), its part Funpedia: is a text about a woman or a man? JSONL files.

Rows that are neutral ask nothing here and are passed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

from oven_recipes.oracle.benchmark_templates import NAMES, PERSON_FRAMES, PLACES, PRONOUNS, THINGS
from oven_recipes.oracle.benchmarks.benchmark import Benchmark, Labelled
from oven_recipes.oracle.benchmarks.published_files import json_lines, label_of


def _read(path: Path) -> Iterator[Labelled]:
    labels = {
        "female": frozenset({"female"}), "male": frozenset({"male"}), "gender-neutral": None,
        "1": frozenset({"female"}), "2": frozenset({"male"}), "0": None,
    }  # fmt: skip
    for line, row in json_lines(path, ("text", "gender")):
        if (label := label_of(path, f"line {line}", row["gender"], labels)) is not None:
            yield Labelled(str(row["text"]).strip(), label, f"{path}, line {line}")


def _templates() -> Iterator[Labelled]:
    for label, names in NAMES.items():
        subject, possessive = PRONOUNS[label]
        for frame, name, thing, place in product(PERSON_FRAMES, names, THINGS, PLACES):
            yield Labelled(
                frame.format(name=name, subject=subject, possessive=possessive, thing=thing, place=place),
                frozenset({label}),
            )


BENCHMARK = Benchmark(
    "md_gender", ("**/funpedia/test.jsonl", "**/test.jsonl", "**/*.jsonl"), "JSONL with text, gender", _read, _templates
)
