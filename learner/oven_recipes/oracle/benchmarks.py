"""The nine benchmarks, with readers for their published files and with template texts for use without the files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from string import Formatter
from typing import Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from oven_core.errors import ConfigError, reason
from oven_recipes.oracle.published_files import label_of, rows, text_of
from oven_recipes.oracle.template_words import WORDS

YES = "yes"
NO = "no"
TRUE = frozenset({YES})
"""Labels of a text with the answer yes, for questions without labels."""
FALSE: frozenset[str] = frozenset()


class Labelled(NamedTuple):
    """A text and its labels. `where`: its file and line, or an empty string."""

    text: str
    labels: frozenset[str]
    where: str = ""


class Item(NamedTuple):
    """A text, a question about it, the right answer (`yes` or `no`), and the text's source."""

    text: str
    question: str
    answer: str
    where: str = ""


@dataclass(frozen=True)
class Benchmark:
    """One benchmark. `read` yields the texts of one published file, and raises ConfigError if the file is invalid."""

    name: str
    files: tuple[str, ...]
    """Patterns for the published files in the benchmark's folder. The first match is read. Test parts come before
    training parts, which a model may know, and before files with another layout in the same folder."""
    read: Callable[[Path], Iterator[Labelled]]
    templates: Callable[[], Iterator[Labelled]]

    def questions(self, labels: frozenset[str]) -> Iterator[tuple[str, str]]:
        """Yield each question with its answer for a text with these labels."""
        question = WORDS.questions[self.name]
        for label in question.labels or (YES,):
            yield question.wording.format(label), YES if label in labels else NO


def two_sentences(first: str, second: str) -> str:
    """Return a premise and a hypothesis as one text."""
    return f"first: {first} second: {second}"


def labelled_reader(
    text: str, label: str, labels: Mapping[str, frozenset[str] | None]
) -> Callable[[Path], Iterator[Labelled]]:
    """Return a reader of files whose rows have one label each, in the column `label`. `text`: a template for the text,
    with names of other columns. Rows whose label maps to None are skipped."""
    columns = [name for _, name, _, _ in Formatter().parse(text) if name]

    def read(path: Path) -> Iterator[Labelled]:
        for where, row in rows(path, [*columns, label]):
            row_labels = label_of(where, row[label], labels)
            if row_labels is not None:
                yield Labelled(text.format(**row).strip(), row_labels, where)

    return read


def _geometry_of_truth_templates() -> Iterator[Labelled]:
    countries = tuple(WORDS.cities)
    for position, (lead, frame, (nth, cities)) in enumerate(
        product(WORDS.leads, WORDS.city_frames, enumerate(WORDS.cities.values()))
    ):
        wrong_country = countries[(nth + 1 + position % (len(countries) - 1)) % len(countries)]
        for city in cities:
            yield Labelled(lead + frame.format(city, countries[nth]), TRUE)
            yield Labelled(lead + frame.format(city, wrong_country), FALSE)
    for lead, (word, sign), (a, b) in product(
        WORDS.leads, WORDS.comparisons, product(range(len(WORDS.numbers)), repeat=2)
    ):
        if a != b:
            true = (a - b) * sign > 0
            yield Labelled(f"{lead}{WORDS.numbers[a]} is {word} than {WORDS.numbers[b]}", TRUE if true else FALSE)


class _Sample(BaseModel):
    model_config = ConfigDict(coerce_numbers_to_str=True)

    subject: str
    object: str


class _Relation(BaseModel):
    prompt_templates: Annotated[list[Annotated[str, StringConstraints(pattern=r"\{\}")]], Field(min_length=1)]
    samples: list[_Sample]


def _read_relations(path: Path) -> Iterator[Labelled]:
    """Yield two texts per sample: its subject with the right object, and with a wrong object from another sample."""
    try:
        relation = _Relation.model_validate_json(text_of(path))
    except ValidationError as error:
        raise ConfigError(
            f"{path}: {reason(error)}; a published file has samples, and prompt_templates with {{}}"
        ) from error
    right: dict[str, set[str]] = {}
    for sample in relation.samples:
        right.setdefault(sample.subject, set()).add(sample.object)
    objects = sorted({sample.object for sample in relation.samples})
    for number, sample in enumerate(relation.samples, 1):
        frame = relation.prompt_templates[number % len(relation.prompt_templates)].replace("{}", sample.subject)
        wrong = [candidate for candidate in objects if candidate not in right[sample.subject]]
        where = f"{path}, sample {number}"
        yield Labelled(f"{frame} {sample.object}.", TRUE, where)
        if wrong:
            yield Labelled(f"{frame} {wrong[number * 7919 % len(wrong)]}.", FALSE, where)


def _relations_templates() -> Iterator[Labelled]:
    for frames, facts in WORDS.relations.values():
        objects = tuple(facts.values())
        for position, (lead, frame, (nth, subject)) in enumerate(product(WORDS.leads, frames, enumerate(facts))):
            wrong_object = objects[(nth + 1 + position % (len(objects) - 1)) % len(objects)]
            yield Labelled(lead + frame.format(subject, objects[nth]), TRUE)
            yield Labelled(lead + frame.format(subject, wrong_object), FALSE)


def _sst2_templates() -> Iterator[Labelled]:
    for label, feelings in WORDS.reviews.items():
        for frame, thing, degree, word in product(WORDS.review_frames, WORDS.reviewed, WORDS.degrees, feelings):
            yield Labelled(frame.format(thing, degree, word), frozenset({label}))


def _md_gender_templates() -> Iterator[Labelled]:
    for label, names in WORDS.names.items():
        subject, possessive = WORDS.pronouns[label]
        for frame, name, thing, setting in product(WORDS.person_frames, names, WORDS.things, WORDS.places):
            yield Labelled(
                frame.format(name=name, subject=subject, possessive=possessive, thing=thing, place=setting),
                frozenset({label}),
            )


def _snli_templates() -> Iterator[Labelled]:
    for frame, (who, kind), doing, setting in product(WORDS.premises, WORDS.kinds.items(), WORDS.doings, WORDS.places):
        premise = frame.format(who, doing, setting)
        for shift in (0, 1 + len(premise) % (len(WORDS.doings) - 1)):  # a shift of 0 repeats the premise
            label = FALSE if shift else TRUE
            other_doing = WORDS.doings[(WORDS.doings.index(doing) + shift) % len(WORDS.doings)]
            other_place = WORDS.places[(WORDS.places.index(setting) + shift) % len(WORDS.places)]
            yield Labelled(two_sentences(premise, f"the {kind} is {other_doing}"), label)
            yield Labelled(two_sentences(premise, f"the {kind} is in the {other_place}"), label)


def _ag_news_templates() -> Iterator[Labelled]:
    for label, (who, did, what) in WORDS.news.items():
        for a, b, c, day in product(who, did, what, WORDS.days):
            yield Labelled(f"the {a} {b} the {c} {day}", frozenset({label}))


TAGS = {"per": "a person", "geo": "a place", "gpe": "a place", "org": "an organization"}
"""Entity type in the question, by the part of the tag after `B-` or `I-`."""
OTHER_TAGS = ("tim", "art", "nat", "eve")


def _read_ner(path: Path) -> Iterator[Labelled]:
    """Return the sentences. Only a sentence's first row has its number. The published Latin-1 file must be
    converted."""
    known = {f"{prefix}-{tag}": TAGS.get(tag) for prefix in "BI" for tag in (*TAGS, *OTHER_TAGS)} | {"O": None}
    sentences: list[tuple[str, list[str], set[str]]] = []
    for where, row in rows(path, ("Sentence #", "Word", "POS", "Tag")):
        if row["Sentence #"].strip():
            sentences.append((where, [], set()))
        elif not sentences:
            raise ConfigError(f"{where}: there is a word before the first `Sentence: 1`; download the file again")
        _, tokens, labels = sentences[-1]
        tokens.append(row["Word"])
        if (label := label_of(where, row["Tag"], known)) is not None:
            labels.add(label)
    return (Labelled(" ".join(tokens), frozenset(labels), where) for where, tokens, labels in sentences)


def _ner_templates() -> Iterator[Labelled]:
    fillers = {
        "person": WORDS.names["female"] + WORDS.names["male"],
        "place": tuple(city for cities in WORDS.cities.values() for city in cities) + tuple(WORDS.cities),
        "organization": WORDS.organizations,
        "thing": WORDS.things,
        "day": WORDS.days,
    }
    for frame, labels in WORDS.entity_frames:
        places = [name for name in fillers if f"{{{name}}}" in frame]
        for entities in product(*(fillers[name] for name in places)):
            yield Labelled(
                frame.format(**dict(zip(places, entities, strict=True))),
                frozenset(f"an {kind}" if kind == "organization" else f"a {kind}" for kind in labels),
            )


def _tense_templates() -> Iterator[Labelled]:
    for subject, (past, present, future), manner, setting in product(
        WORDS.subjects, WORDS.verbs, WORDS.settings, WORDS.places
    ):
        for label, verb in (("past", past), ("present", present), ("future", f"will {future}")):
            yield Labelled(f"the {subject} {verb} {manner.format(setting)}", frozenset({label}))


def _singular_plural_templates() -> Iterator[Labelled]:
    for (nth, (singular, several)), state, setting in product(enumerate(WORDS.nouns), WORDS.states, WORDS.places):
        wrong_noun = WORDS.nouns[(nth + 1 + len(state + setting) % (len(WORDS.nouns) - 1)) % len(WORDS.nouns)][0]
        for frame in ("the {} {} {} in the {}", "in the {3} the {0} {1} {2}"):
            yield Labelled(frame.format(singular, "is", state, setting), frozenset({"one subject"}))
            yield Labelled(frame.format(several, "are", state, setting), frozenset({"several subjects"}))
            yield Labelled(
                frame.format(f"{singular} and the {wrong_noun}", "are", state, setting), frozenset({"several subjects"})
            )


FEMALE, MALE = frozenset({"female"}), frozenset({"male"})

BENCHMARKS: Mapping[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        # Geometry of Truth (Marks & Tegmark 2023, arXiv 2310.06824): is a statement true?
        Benchmark(
            "geometry_of_truth",
            ("**/*.csv",),
            labelled_reader("{statement}", "label", {"1": TRUE, "0": FALSE}),
            _geometry_of_truth_templates,
        ),
        # Hernandez et al. 2023, arXiv 2308.09124: is a fact correct?
        Benchmark("relations", ("**/*.json",), _read_relations, _relations_templates),
        # Socher et al. 2013, as GLUE publishes it: is the feeling of a sentence positive?
        Benchmark(
            "sst2",
            ("**/dev.tsv", "**/train.tsv"),
            labelled_reader("{sentence}", "label", {"1": frozenset({"positive"}), "0": frozenset({"negative"})}),
            _sst2_templates,
        ),
        # The part Funpedia of MD Gender (Dinan et al. 2020, arXiv 2005.00614): is a text about a woman or a man?
        Benchmark(
            "md_gender",
            ("**/funpedia/test.jsonl", "**/test.jsonl", "**/*.jsonl"),
            labelled_reader(
                "{text}",
                "gender",
                {"female": FEMALE, "male": MALE, "gender-neutral": None, "1": FEMALE, "2": MALE, "0": None},
            ),
            _md_gender_templates,
        ),
        # Bowman et al. 2015: does a hypothesis follow from a premise? Pairs without a majority have the label `-`.
        Benchmark(
            "snli",
            ("**/*test.jsonl", "**/*dev.jsonl", "**/*.jsonl"),
            labelled_reader(
                two_sentences("{sentence1}", "{sentence2}"),
                "gold_label",
                {"entailment": TRUE, "contradiction": FALSE, "neutral": None, "-": None},
            ),
            _snli_templates,
        ),
        # Zhang et al. 2015, arXiv 1509.01626: which topic is a report about?
        Benchmark(
            "ag_news",
            ("**/test.csv", "**/*.csv"),
            labelled_reader(
                "{Title}. {Description}",
                "Class Index",
                {str(number): frozenset({topic}) for number, topic in enumerate(WORDS.news, 1)},
            ),
            _ag_news_templates,
        ),
        # The Annotated Corpus for NER (of the Groningen Meaning Bank)
        Benchmark("ner", ("**/ner_dataset.csv", "**/*.csv"), _read_ner, _ner_templates),
        # Both as in Activation Oracles (Karvonen et al. 2025, arXiv 2512.15674)
        Benchmark(
            "tense",
            ("**/*.json",),
            labelled_reader("{sentence}", "label", {name: frozenset({name}) for name in ("past", "present", "future")}),
            _tense_templates,
        ),
        Benchmark(
            "singular_plural",
            ("**/*.csv",),
            labelled_reader(
                "{sentence}",
                "n_subjects",
                {"single": frozenset({"one subject"}), "multiple": frozenset({"several subjects"})},
            ),
            _singular_plural_templates,
        ),
    )
}
"""Benchmarks by name, in the order of the report."""
