"""Named entities, the Annotated Corpus for NER (of the Groningen Meaning Bank): CSV `Sentence #,Word,POS,Tag`.

A sentence's number is in its first row alone. The published file is Latin-1, and has to be converted.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

from oven_core.errors import ConfigError
from oven_recipes.oracle.benchmark_templates import CITIES, DAYS, ENTITY_FRAMES, NAMES, ORGANIZATIONS, THINGS
from oven_recipes.oracle.benchmarks.benchmark import Benchmark, Labelled
from oven_recipes.oracle.benchmarks.published_files import label_of, table

TAGS = {"per": "a person", "geo": "a place", "gpe": "a place", "org": "an organization"}
"""Kinds of entity that are asked for, by the tag after `B-` or `I-`."""
OTHER_TAGS = ("tim", "art", "nat", "eve")


def _read(path: Path) -> Iterator[Labelled]:
    known = {f"{at}-{tag}": TAGS.get(tag) for at in "BI" for tag in (*TAGS, *OTHER_TAGS)} | {"O": None}
    words: list[str] = []
    labels: set[str] = set()
    where = ""
    for line, row in table(path, ("Sentence #", "Word", "POS", "Tag")):
        if row["Sentence #"].strip():
            if words:
                yield Labelled(" ".join(words), frozenset(labels), where)
            words, labels, where = [], set(), f"{path}, line {line}"
        elif not where:
            raise ConfigError(f"{path}, line {line}: a word before the first `Sentence: 1`; fetch the file again")
        words.append(row["Word"])
        if (label := label_of(path, f"line {line}", row["Tag"], known)) is not None:
            labels.add(label)
    if words:
        yield Labelled(" ".join(words), frozenset(labels), where)


def _templates() -> Iterator[Labelled]:
    fillers = {
        "person": NAMES["female"] + NAMES["male"],
        "place": tuple(city for cities in CITIES.values() for city in cities) + tuple(CITIES),
        "organization": ORGANIZATIONS,
        "thing": THINGS,
        "day": DAYS,
    }
    for frame, labels in ENTITY_FRAMES:
        places = [name for name in fillers if f"{{{name}}}" in frame]
        for words in product(*(fillers[name] for name in places)):
            yield Labelled(
                frame.format(**dict(zip(places, words, strict=True))),
                frozenset(f"an {kind}" if kind == "organization" else f"a {kind}" for kind in labels),
            )


BENCHMARK = Benchmark("ner", ("**/ner_dataset.csv", "**/*.csv"), "CSV with Sentence #,Word,POS,Tag", _read, _templates)
