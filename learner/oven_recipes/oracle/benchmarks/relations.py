"""Relations (Hernandez et al. 2023, arXiv 2308.09124): is a fact correct? JSON files with `prompt_templates, samples`.

Each sample gives two texts: a template with its subject and its own object, and with another sample's object.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

from oven_core.errors import ConfigError
from oven_recipes.oracle.benchmark_templates import LEADS, RELATIONS
from oven_recipes.oracle.benchmarks.benchmark import FALSE, TRUE, Benchmark, Labelled
from oven_recipes.oracle.benchmarks.published_files import json_objects, json_value


def _read(path: Path) -> Iterator[Labelled]:
    relation = json_value(path)
    if not isinstance(relation, dict) or not {"prompt_templates", "samples"} <= relation.keys():
        raise ConfigError(f"{path}: there are no prompt_templates and samples; published files have both")
    frames = relation["prompt_templates"]
    if not (isinstance(frames, list) and frames and all(isinstance(one, str) and "{}" in one for one in frames)):
        raise ConfigError(f"{path}: prompt_templates must be texts with {{}} in the place of the subject")
    samples = [
        (number, str(one["subject"]), str(one["object"]))
        for number, one in json_objects(path, relation["samples"], ("subject", "object"))
    ]
    right: dict[str, set[str]] = {}
    for _, subject, thing in samples:
        right.setdefault(subject, set()).add(thing)
    things = sorted({thing for _, _, thing in samples})
    for number, subject, thing in samples:
        frame = frames[number % len(frames)]
        wrong = [other for other in things if other not in right[subject]]
        where = f"{path}, sample {number}"
        yield Labelled(f"{frame.replace('{}', subject)} {thing}.", TRUE, where)
        if wrong:
            yield Labelled(f"{frame.replace('{}', subject)} {wrong[number * 7919 % len(wrong)]}.", FALSE, where)


def _templates() -> Iterator[Labelled]:
    for frames, facts in RELATIONS.values():
        objects = tuple(facts.values())
        for position, (lead, frame, (nth, subject)) in enumerate(product(LEADS, frames, enumerate(facts))):
            other = objects[(nth + 1 + position % (len(objects) - 1)) % len(objects)]
            yield Labelled(lead + frame.format(subject, objects[nth]), TRUE)
            yield Labelled(lead + frame.format(subject, other), FALSE)


BENCHMARK = Benchmark("relations", ("**/*.json",), "JSON with prompt_templates, samples", _read, _templates)
