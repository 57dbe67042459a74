"""The nine benchmarks, with readers for their published files, and template texts to use if the files are missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from string import Formatter
from typing import Annotated, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from oven_core.errors import ConfigError, reason
from oven_recipes.oracle.dataset_reader import look_up_label, read_rows, read_text
from oven_recipes.oracle.template_words import WORDS

YES = "yes"
NO = "no"
TRUE = frozenset({YES})
FALSE: frozenset[str] = frozenset()
"""Labels of a text in a benchmark with a single yes/no question: TRUE if the answer is yes, and FALSE if it is no."""


class LabelledText(NamedTuple):
    """A text and its labels. `location` is its file and line, or empty for a template."""

    text: str
    labels: frozenset[str]
    location: str = ""


class Item(NamedTuple):
    """A text, a question about it, the correct answer (`yes` or `no`), and the text's file and line."""

    text: str
    question: str
    answer: str
    location: str = ""


@dataclass(frozen=True)
class Benchmark:
    """One benchmark. `read` yields the texts of a published file, and raises ConfigError if the file is invalid.
    `templates` yields the texts to use without published files."""

    name: str
    files: tuple[str, ...]
    """Patterns of the published files in the benchmark's folder. Only the first pattern that matches is used. Test sets
    come first, because a model may know the training sets, and other files in the folder may have another format."""
    read: Callable[[Path], Iterator[LabelledText]]
    templates: Callable[[], Iterator[LabelledText]]

    def questions(self, labels: frozenset[str]) -> Iterator[tuple[str, str]]:
        """Yield each question with its answer for a text with these labels."""
        question = WORDS.questions[self.name]
        for label in question.labels or (YES,):
            yield question.wording.format(label), YES if label in labels else NO


def two_sentences(first: str, second: str) -> str:
    """Return a premise and a hypothesis as one text."""
    return f"first: {first} second: {second}"


def labelled_reader(
    template: str, label_column: str, labels: Mapping[str, frozenset[str] | None]
) -> Callable[[Path], Iterator[LabelledText]]:
    """Return a reader for files with one label per row. `template` builds the text from other columns. `labels` maps
    each value of `label_column` to labels, or to None if such rows are skipped."""
    columns = [name for _, name, _, _ in Formatter().parse(template) if name]

    def read(path: Path) -> Iterator[LabelledText]:
        for location, row in read_rows(path, [*columns, label_column]):
            row_labels = look_up_label(location, row[label_column], labels)
            if row_labels is not None:
                yield LabelledText(template.format(**row).strip(), row_labels, location)

    return read


_Value = TypeVar("_Value")


def _another(values: Sequence[_Value], index: int, choice: int) -> _Value:
    """Return a value other than `values[index]`. The number `choice` selects which."""
    return values[(index + 1 + choice % (len(values) - 1)) % len(values)]


def _geometry_of_truth_templates() -> Iterator[LabelledText]:
    """Yield true and false statements: in which country a city is, and which of two numbers is larger or smaller."""
    countries = tuple(WORDS.cities)
    for position, (lead, frame, (index, country)) in enumerate(
        product(WORDS.leads, WORDS.city_frames, enumerate(countries))
    ):
        for city in WORDS.cities[country]:
            yield LabelledText(lead + frame.format(city, country), TRUE)
            yield LabelledText(lead + frame.format(city, _another(countries, index, position)), FALSE)
    numbers = enumerate(WORDS.numbers)  # the number words are in ascending order
    for lead, (comparative, sign), ((first_rank, first), (second_rank, second)) in product(
        WORDS.leads, WORDS.comparisons, product(numbers, repeat=2)
    ):
        if first_rank != second_rank:
            labels = TRUE if (first_rank - second_rank) * sign > 0 else FALSE
            yield LabelledText(f"{lead}{first} is {comparative} than {second}", labels)


class _RelationSample(BaseModel):
    model_config = ConfigDict(coerce_numbers_to_str=True)

    subject: str
    object: str


class _Relation(BaseModel):
    prompt_templates: Annotated[list[Annotated[str, StringConstraints(pattern=r"\{\}")]], Field(min_length=1)]
    samples: list[_RelationSample]


def _read_relations(path: Path) -> Iterator[LabelledText]:
    """Yield two texts per sample: its subject with the correct object, and with a wrong object from another sample."""
    try:
        relation = _Relation.model_validate_json(read_text(path))
    except ValidationError as error:
        raise ConfigError(
            f"{path}: {reason(error)}; a published file has samples, and prompt_templates with {{}}"
        ) from error
    correct_objects: dict[str, set[str]] = {}
    for sample in relation.samples:
        correct_objects.setdefault(sample.subject, set()).add(sample.object)
    objects = sorted({sample.object for sample in relation.samples})
    for number, sample in enumerate(relation.samples, 1):
        frame = relation.prompt_templates[number % len(relation.prompt_templates)].replace("{}", sample.subject)
        wrong_objects = [candidate for candidate in objects if candidate not in correct_objects[sample.subject]]
        location = f"{path}, sample {number}"
        yield LabelledText(f"{frame} {sample.object}.", TRUE, location)
        if wrong_objects:
            wrong_object = wrong_objects[number * 7919 % len(wrong_objects)]  # a large prime varies the choice
            yield LabelledText(f"{frame} {wrong_object}.", FALSE, location)


def _relations_templates() -> Iterator[LabelledText]:
    for frames, facts in WORDS.relations.values():
        objects = tuple(facts.values())
        for position, (lead, frame, (index, subject)) in enumerate(product(WORDS.leads, frames, enumerate(facts))):
            yield LabelledText(lead + frame.format(subject, objects[index]), TRUE)
            yield LabelledText(lead + frame.format(subject, _another(objects, index, position)), FALSE)


def _sst2_templates() -> Iterator[LabelledText]:
    for label, feelings in WORDS.reviews.items():
        for frame, subject, degree, word in product(
            WORDS.review_frames, WORDS.review_subjects, WORDS.degrees, feelings
        ):
            yield LabelledText(frame.format(subject, degree, word), frozenset({label}))


def _md_gender_templates() -> Iterator[LabelledText]:
    for label, names in WORDS.names.items():
        subject, possessive = WORDS.pronouns[label]
        for frame, name, thing, site in product(WORDS.person_frames, names, WORDS.things, WORDS.places):
            yield LabelledText(
                frame.format(name=name, subject=subject, possessive=possessive, thing=thing, place=site),
                frozenset({label}),
            )


def _snli_templates() -> Iterator[LabelledText]:
    """Yield each premise with two true and two false hypotheses. A false one has another action or place."""
    for frame, (noun, kind), action, site in product(WORDS.premises, WORDS.kinds.items(), WORDS.actions, WORDS.places):
        premise = frame.format(noun, action, site)
        for shift in (0, 1 + len(premise) % (len(WORDS.actions) - 1)):  # 0 selects the premise's action and place
            label = FALSE if shift else TRUE
            other_action = WORDS.actions[(WORDS.actions.index(action) + shift) % len(WORDS.actions)]
            other_site = WORDS.places[(WORDS.places.index(site) + shift) % len(WORDS.places)]
            yield LabelledText(two_sentences(premise, f"the {kind} is {other_action}"), label)
            yield LabelledText(two_sentences(premise, f"the {kind} is in the {other_site}"), label)


def _ag_news_templates() -> Iterator[LabelledText]:
    for label, (subjects, verbs, objects) in WORDS.news.items():
        for subject, verb, object_, day in product(subjects, verbs, objects, WORDS.days):
            yield LabelledText(f"the {subject} {verb} the {object_} {day}", frozenset({label}))


TAGS = {"per": "a person", "geo": "a place", "gpe": "a place", "org": "an organization"}
"""Entity type in the question, by tag without its prefix `B-` or `I-`."""
OTHER_TAGS = ("tim", "art", "nat", "eve")
"""Tags of entity types that no question asks about."""


def _read_ner(path: Path) -> Iterator[LabelledText]:
    """Return the labelled sentences of the file, which has one row per word. Only a sentence's first row contains its
    number. The published file is Latin-1 and must be converted to UTF-8."""
    labels_by_tag = {f"{prefix}-{tag}": TAGS.get(tag) for prefix in "BI" for tag in (*TAGS, *OTHER_TAGS)} | {"O": None}
    sentences: list[tuple[str, list[str], set[str]]] = []
    for location, row in read_rows(path, ("Sentence #", "Word", "POS", "Tag")):
        if row["Sentence #"].strip():
            sentences.append((location, [], set()))
        elif not sentences:
            raise ConfigError(f"{location}: there is a word before the first `Sentence: 1`; download the file again")
        _, tokens, labels = sentences[-1]
        tokens.append(row["Word"])
        if (label := look_up_label(location, row["Tag"], labels_by_tag)) is not None:
            labels.add(label)
    return (LabelledText(" ".join(tokens), frozenset(labels), location) for location, tokens, labels in sentences)


def _ner_templates() -> Iterator[LabelledText]:
    fillers = {
        "person": WORDS.names["female"] + WORDS.names["male"],
        "place": tuple(city for cities in WORDS.cities.values() for city in cities) + tuple(WORDS.cities),
        "organization": WORDS.organizations,
        "thing": WORDS.things,
        "day": WORDS.days,
    }
    for frame, labels in WORDS.entity_frames:
        names = [name for name in fillers if f"{{{name}}}" in frame]
        for entities in product(*(fillers[name] for name in names)):
            yield LabelledText(
                frame.format(**dict(zip(names, entities, strict=True))),
                frozenset(f"an {kind}" if kind == "organization" else f"a {kind}" for kind in labels),
            )


def _tense_templates() -> Iterator[LabelledText]:
    for subject, (past, present, future), setting, site in product(
        WORDS.subjects, WORDS.verbs, WORDS.settings, WORDS.places
    ):
        for label, verb in (("past", past), ("present", present), ("future", f"will {future}")):
            yield LabelledText(f"the {subject} {verb} {setting.format(site)}", frozenset({label}))


def _singular_plural_templates() -> Iterator[LabelledText]:
    for (index, (singular, plural)), state, site in product(enumerate(WORDS.nouns), WORDS.states, WORDS.places):
        other_noun, _ = _another(WORDS.nouns, index, len(state + site))
        for frame in ("the {} {} {} in the {}", "in the {3} the {0} {1} {2}"):
            yield LabelledText(frame.format(singular, "is", state, site), frozenset({"one subject"}))
            yield LabelledText(frame.format(plural, "are", state, site), frozenset({"several subjects"}))
            yield LabelledText(
                frame.format(f"{singular} and the {other_noun}", "are", state, site),
                frozenset({"several subjects"}),
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
        # Socher et al. 2013, as GLUE publishes it: is the sentiment of a sentence positive?
        Benchmark(
            "sst2",
            ("**/dev.tsv", "**/train.tsv"),
            labelled_reader("{sentence}", "label", {"1": frozenset({"positive"}), "0": frozenset({"negative"})}),
            _sst2_templates,
        ),
        # The Funpedia part of MD Gender (Dinan et al. 2020, arXiv 2005.00614): is a text about a woman or a man?
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
        # Zhang et al. 2015, arXiv 1509.01626: which topic is a news report about?
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
        # The last two are from the evaluation of Activation Oracles (Karvonen et al. 2025, arXiv 2512.15674).
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
"""Benchmarks by name, in report order."""
