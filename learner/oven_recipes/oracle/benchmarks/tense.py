"""Tense, as in Activation Oracles (Karvonen et al. 2025, arXiv 2512.15674): a JSON list of `sentence, label`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

from oven_recipes.oracle.benchmark_templates import MANNERS, PLACES, SUBJECTS, VERBS
from oven_recipes.oracle.benchmarks.benchmark import Benchmark, Labelled
from oven_recipes.oracle.benchmarks.published_files import json_objects, json_value, label_of


def _read(path: Path) -> Iterator[Labelled]:
    labels = {label: frozenset({label}) for label in ("past", "present", "future")}
    for number, row in json_objects(path, json_value(path), ("sentence", "label")):
        place = f"entry {number}"
        yield Labelled(str(row["sentence"]), label_of(path, place, row["label"], labels), f"{path}, {place}")


def _templates() -> Iterator[Labelled]:
    for subject, (past, present, future), manner, place in product(SUBJECTS, VERBS, MANNERS, PLACES):
        for label, verb in (("past", past), ("present", present), ("future", f"will {future}")):
            yield Labelled(f"the {subject} {verb} {manner.format(place)}", frozenset({label}))


BENCHMARK = Benchmark("tense", ("**/*.json",), "JSON list with sentence, label", _read, _templates)
