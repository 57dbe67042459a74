"""The nine benchmarks: readers of their published files' layouts, and template texts to use without the files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path

from oven_core.errors import ConfigError
from oven_recipes.oracle.benchmark_templates import (
    CITIES,
    CITY_FRAMES,
    COMPARISONS,
    DAYS,
    DEGREES,
    DOINGS,
    ENTITY_FRAMES,
    FEELINGS,
    KINDS,
    LEADS,
    MANNERS,
    NAMES,
    NEWS,
    NOUNS,
    NUMBERS,
    ORGANIZATIONS,
    PERSON_FRAMES,
    PLACES,
    PREMISES,
    PRONOUNS,
    RELATIONS,
    REVIEW_FRAMES,
    REVIEWED,
    STATES,
    SUBJECTS,
    THINGS,
    VERBS,
)
from oven_recipes.oracle.benchmarks.benchmark import FALSE, TRUE, Benchmark, Labelled, two_sentences
from oven_recipes.oracle.benchmarks.published_files import json_lines, json_objects, json_value, label_of, table

# Geometry of Truth (Marks & Tegmark 2023, arXiv 2310.06824): is a statement true? CSV files with `statement,label`.


def _read_geometry_of_truth(path: Path) -> Iterator[Labelled]:
    for line, row in table(path, ("statement", "label")):
        yield Labelled(
            row["statement"],
            label_of(path, f"line {line}", row["label"], {"1": TRUE, "0": FALSE}),
            f"{path}, line {line}",
        )


def _geometry_of_truth_templates() -> Iterator[Labelled]:
    countries = tuple(CITIES)
    for position, (lead, frame, (nth, cities)) in enumerate(product(LEADS, CITY_FRAMES, enumerate(CITIES.values()))):
        wrong_country = countries[(nth + 1 + position % (len(countries) - 1)) % len(countries)]
        for city in cities:
            yield Labelled(lead + frame.format(city, countries[nth]), TRUE)
            yield Labelled(lead + frame.format(city, wrong_country), FALSE)
    for lead, (word, sign), (a, b) in product(LEADS, COMPARISONS, product(range(len(NUMBERS)), repeat=2)):
        if a != b:
            true = (a - b) * sign > 0
            yield Labelled(f"{lead}{NUMBERS[a]} is {word} than {NUMBERS[b]}", TRUE if true else FALSE)


GEOMETRY_OF_TRUTH = Benchmark(
    "geometry_of_truth",
    ("**/*.csv",),
    "CSV with statement,label",
    _read_geometry_of_truth,
    _geometry_of_truth_templates,
)


# Relations (Hernandez et al. 2023, arXiv 2308.09124): is a fact correct? JSON files with `prompt_templates, samples`.
#
# Each sample gives two texts: a template with its subject and its own object, and with another sample's object.


def _read_relations(path: Path) -> Iterator[Labelled]:
    relation = json_value(path)
    if not isinstance(relation, dict) or not {"prompt_templates", "samples"} <= relation.keys():
        raise ConfigError(f"{path}: there are no prompt_templates and samples; published files have both")
    frames = relation["prompt_templates"]
    if not (isinstance(frames, list) and frames and all(isinstance(frame, str) and "{}" in frame for frame in frames)):
        raise ConfigError(f"{path}: prompt_templates must be texts with {{}} in the place of the subject")
    samples = [
        (number, str(sample["subject"]), str(sample["object"]))
        for number, sample in json_objects(path, relation["samples"], ("subject", "object"))
    ]
    right: dict[str, set[str]] = {}
    for _, subject, thing in samples:
        right.setdefault(subject, set()).add(thing)
    things = sorted({thing for _, _, thing in samples})
    for number, subject, thing in samples:
        frame = frames[number % len(frames)]
        wrong = [thing for thing in things if thing not in right[subject]]
        where = f"{path}, sample {number}"
        yield Labelled(f"{frame.replace('{}', subject)} {thing}.", TRUE, where)
        if wrong:
            yield Labelled(f"{frame.replace('{}', subject)} {wrong[number * 7919 % len(wrong)]}.", FALSE, where)


def _relations_templates() -> Iterator[Labelled]:
    for frames, facts in RELATIONS.values():
        objects = tuple(facts.values())
        for position, (lead, frame, (nth, subject)) in enumerate(product(LEADS, frames, enumerate(facts))):
            wrong_object = objects[(nth + 1 + position % (len(objects) - 1)) % len(objects)]
            yield Labelled(lead + frame.format(subject, objects[nth]), TRUE)
            yield Labelled(lead + frame.format(subject, wrong_object), FALSE)


RELATION_BENCHMARK = Benchmark(
    "relations", ("**/*.json",), "JSON with prompt_templates, samples", _read_relations, _relations_templates
)


# SST-2 (Socher et al. 2013) as GLUE publishes it: is the feeling of a sentence positive? TSV `sentence, label`.


def _read_sst2(path: Path) -> Iterator[Labelled]:
    labels = {"1": frozenset({"positive"}), "0": frozenset({"negative"})}
    for line, row in table(path, ("sentence", "label"), tabs=True):
        yield Labelled(
            row["sentence"].strip(), label_of(path, f"line {line}", row["label"], labels), f"{path}, line {line}"
        )


def _sst2_templates() -> Iterator[Labelled]:
    for label, words in FEELINGS.items():
        for frame, thing, degree, word in product(REVIEW_FRAMES, REVIEWED, DEGREES, words):
            yield Labelled(frame.format(thing, degree, word), frozenset({label}))


SST2 = Benchmark("sst2", ("**/dev.tsv", "**/train.tsv"), "GLUE TSV with sentence, label", _read_sst2, _sst2_templates)


# MD Gender (Dinan et al. 2020, arXiv 2005.00614), its part Funpedia: is a text about a woman or a man? JSONL files.
#
# Rows that are neutral ask nothing here and are passed over.


def _read_md_gender(path: Path) -> Iterator[Labelled]:
    labels = {
        "female": frozenset({"female"}), "male": frozenset({"male"}), "gender-neutral": None,
        "1": frozenset({"female"}), "2": frozenset({"male"}), "0": None,
    }  # fmt: skip
    for line, row in json_lines(path, ("text", "gender")):
        if (label := label_of(path, f"line {line}", row["gender"], labels)) is not None:
            yield Labelled(str(row["text"]).strip(), label, f"{path}, line {line}")


def _md_gender_templates() -> Iterator[Labelled]:
    for label, names in NAMES.items():
        subject, possessive = PRONOUNS[label]
        for frame, name, thing, setting in product(PERSON_FRAMES, names, THINGS, PLACES):
            yield Labelled(
                frame.format(name=name, subject=subject, possessive=possessive, thing=thing, place=setting),
                frozenset({label}),
            )


MD_GENDER = Benchmark(
    "md_gender",
    ("**/funpedia/test.jsonl", "**/test.jsonl", "**/*.jsonl"),
    "JSONL with text, gender",
    _read_md_gender,
    _md_gender_templates,
)


# SNLI (Bowman et al. 2015): does a hypothesis follow from a premise? JSONL with `gold_label, sentence1, sentence2`.
#
# Entailment is yes and contradiction no; neutral pairs, and pairs without a majority (`-`), are passed over.


def _read_snli(path: Path) -> Iterator[Labelled]:
    labels = {"entailment": TRUE, "contradiction": FALSE, "neutral": None, "-": None}
    for line, row in json_lines(path, ("gold_label", "sentence1", "sentence2")):
        if (label := label_of(path, f"line {line}", row["gold_label"], labels)) is not None:
            text = two_sentences(str(row["sentence1"]), str(row["sentence2"]))
            yield Labelled(text, label, f"{path}, line {line}")


def _snli_templates() -> Iterator[Labelled]:
    for frame, (who, kind), doing, setting in product(PREMISES, KINDS.items(), DOINGS, PLACES):
        premise = frame.format(who, doing, setting)
        for shift in (0, 1 + len(premise) % (len(DOINGS) - 1)):  # 0 says what the premise says
            label = FALSE if shift else TRUE
            other_doing = DOINGS[(DOINGS.index(doing) + shift) % len(DOINGS)]
            other_place = PLACES[(PLACES.index(setting) + shift) % len(PLACES)]
            yield Labelled(two_sentences(premise, f"the {kind} is {other_doing}"), label)
            yield Labelled(two_sentences(premise, f"the {kind} is in the {other_place}"), label)


SNLI = Benchmark(
    "snli",
    ("**/*test.jsonl", "**/*dev.jsonl", "**/*.jsonl"),
    "JSONL with gold_label, sentence1, sentence2",
    _read_snli,
    _snli_templates,
)


# AG News (Zhang et al. 2015, arXiv 1509.01626): which topic is a report about? CSV `Class Index,Title,Description`.


def _read_ag_news(path: Path) -> Iterator[Labelled]:
    topics = ("world politics", "sports", "business", "science")
    labels = {str(number): frozenset({topic}) for number, topic in enumerate(topics, 1)}
    for line, row in table(path, ("Class Index", "Title", "Description")):
        yield Labelled(
            f"{row['Title']}. {row['Description']}",
            label_of(path, f"line {line}", row["Class Index"], labels),
            f"{path}, line {line}",
        )


def _ag_news_templates() -> Iterator[Labelled]:
    for label, (who, did, what) in NEWS.items():
        for a, b, c, day in product(who, did, what, DAYS):
            yield Labelled(f"the {a} {b} the {c} {day}", frozenset({label}))


AG_NEWS = Benchmark(
    "ag_news", ("**/test.csv", "**/*.csv"), "CSV with Class Index,Title,Description", _read_ag_news, _ag_news_templates
)


# Named entities, the Annotated Corpus for NER (of the Groningen Meaning Bank): CSV `Sentence #,Word,POS,Tag`.
#
# A sentence's number is in its first row alone. The published file is Latin-1, and has to be converted.

TAGS = {"per": "a person", "geo": "a place", "gpe": "a place", "org": "an organization"}
"""Kinds of entity in questions, by the tag after `B-` or `I-`."""
OTHER_TAGS = ("tim", "art", "nat", "eve")


def _read_ner(path: Path) -> Iterator[Labelled]:
    known = {f"{prefix}-{tag}": TAGS.get(tag) for prefix in "BI" for tag in (*TAGS, *OTHER_TAGS)} | {"O": None}
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


def _ner_templates() -> Iterator[Labelled]:
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


NER = Benchmark(
    "ner", ("**/ner_dataset.csv", "**/*.csv"), "CSV with Sentence #,Word,POS,Tag", _read_ner, _ner_templates
)


# Tense, as in Activation Oracles (Karvonen et al. 2025, arXiv 2512.15674): a JSON list of `sentence, label`.


def _read_tense(path: Path) -> Iterator[Labelled]:
    labels = {label: frozenset({label}) for label in ("past", "present", "future")}
    for number, row in json_objects(path, json_value(path), ("sentence", "label")):
        entry = f"entry {number}"
        yield Labelled(str(row["sentence"]), label_of(path, entry, row["label"], labels), f"{path}, {entry}")


def _tense_templates() -> Iterator[Labelled]:
    for subject, (past, present, future), manner, setting in product(SUBJECTS, VERBS, MANNERS, PLACES):
        for label, verb in (("past", past), ("present", present), ("future", f"will {future}")):
            yield Labelled(f"the {subject} {verb} {manner.format(setting)}", frozenset({label}))


TENSE = Benchmark("tense", ("**/*.json",), "JSON list with sentence, label", _read_tense, _tense_templates)


# Singular or plural, as in Activation Oracles (Karvonen et al. 2025, arXiv 2512.15674): CSV `sentence,n_subjects`.


def _read_singular_plural(path: Path) -> Iterator[Labelled]:
    labels = {"single": frozenset({"one subject"}), "multiple": frozenset({"several subjects"})}
    for line, row in table(path, ("sentence", "n_subjects")):
        yield Labelled(
            row["sentence"], label_of(path, f"line {line}", row["n_subjects"], labels), f"{path}, line {line}"
        )


def _singular_plural_templates() -> Iterator[Labelled]:
    for (nth, (singular, several)), state, setting in product(enumerate(NOUNS), STATES, PLACES):
        wrong_noun = NOUNS[(nth + 1 + len(state + setting) % (len(NOUNS) - 1)) % len(NOUNS)][0]
        for frame in ("the {} {} {} in the {}", "in the {3} the {0} {1} {2}"):
            yield Labelled(frame.format(singular, "is", state, setting), frozenset({"one subject"}))
            yield Labelled(frame.format(several, "are", state, setting), frozenset({"several subjects"}))
            yield Labelled(
                frame.format(f"{singular} and the {wrong_noun}", "are", state, setting), frozenset({"several subjects"})
            )


SINGULAR_PLURAL = Benchmark(
    "singular_plural", ("**/*.csv",), "CSV with sentence,n_subjects", _read_singular_plural, _singular_plural_templates
)


BENCHMARKS: Mapping[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        GEOMETRY_OF_TRUTH,
        RELATION_BENCHMARK,
        SST2,
        MD_GENDER,
        SNLI,
        AG_NEWS,
        NER,
        TENSE,
        SINGULAR_PLURAL,
    )
}
"""By name, in the order in which they are reported."""
