"""Items of the template benchmarks: a text, a question, and the answer; training and held out apart.

A hash of the text decides whether it is held out: training may use `items(..., held_out=False)`
alone, evaluation the others alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from hashlib import blake2b
from itertools import product
from typing import NamedTuple

from oven_learner.recipes.oracle.benchmark_templates import (
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
    QUESTIONS,
    RELATIONS,
    REVIEW_FRAMES,
    REVIEWED,
    STATES,
    SUBJECTS,
    THINGS,
    VERBS,
)

YES = "yes"
NO = "no"

HELD_OUT_SHARE = 4
"""One text in so many is held out: a quarter of each benchmark is above 250 texts, with enough of both answers."""


class Item(NamedTuple):
    """A text, a question about it and the right answer, `yes` or `no`."""

    text: str
    question: str
    answer: str


def _geometry_of_truth() -> Iterator[tuple[str, frozenset[str]]]:
    countries = tuple(CITIES)
    for position, (lead, frame, (nth, cities)) in enumerate(product(LEADS, CITY_FRAMES, enumerate(CITIES.values()))):
        other = countries[(nth + 1 + position % (len(countries) - 1)) % len(countries)]
        for city in cities:
            yield lead + frame.format(city, countries[nth]), frozenset({YES})
            yield lead + frame.format(city, other), frozenset()
    for lead, (word, sign), (a, b) in product(LEADS, COMPARISONS, product(range(len(NUMBERS)), repeat=2)):
        if a != b:
            true = (a - b) * sign > 0
            yield f"{lead}{NUMBERS[a]} is {word} than {NUMBERS[b]}", frozenset({YES} if true else ())


def _relations() -> Iterator[tuple[str, frozenset[str]]]:
    for frames, facts in RELATIONS.values():
        objects = tuple(facts.values())
        for position, (lead, frame, (nth, subject)) in enumerate(product(LEADS, frames, enumerate(facts))):
            other = objects[(nth + 1 + position % (len(objects) - 1)) % len(objects)]
            yield lead + frame.format(subject, objects[nth]), frozenset({YES})
            yield lead + frame.format(subject, other), frozenset()


def _sst2() -> Iterator[tuple[str, frozenset[str]]]:
    for label, words in FEELINGS.items():
        for frame, thing, degree, word in product(REVIEW_FRAMES, REVIEWED, DEGREES, words):
            yield frame.format(thing, degree, word), frozenset({label})


def _md_gender() -> Iterator[tuple[str, frozenset[str]]]:
    for label, names in NAMES.items():
        subject, possessive = PRONOUNS[label]
        for frame, name, thing, place in product(PERSON_FRAMES, names, THINGS, PLACES):
            yield (
                frame.format(name=name, subject=subject, possessive=possessive, thing=thing, place=place),
                frozenset({label}),
            )


def _snli() -> Iterator[tuple[str, frozenset[str]]]:
    for frame, (who, kind), doing, place in product(PREMISES, KINDS.items(), DOINGS, PLACES):
        premise = frame.format(who, doing, place)
        for shift in (0, 1 + len(premise) % (len(DOINGS) - 1)):  # 0 says what the premise says
            label = frozenset(() if shift else {YES})
            other_doing = DOINGS[(DOINGS.index(doing) + shift) % len(DOINGS)]
            other_place = PLACES[(PLACES.index(place) + shift) % len(PLACES)]
            yield two_sentences(premise, f"the {kind} is {other_doing}"), label
            yield two_sentences(premise, f"the {kind} is in the {other_place}"), label


def _ag_news() -> Iterator[tuple[str, frozenset[str]]]:
    for label, (who, did, what) in NEWS.items():
        for a, b, c, day in product(who, did, what, DAYS):
            yield f"the {a} {b} the {c} {day}", frozenset({label})


def _ner() -> Iterator[tuple[str, frozenset[str]]]:
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
            yield (
                frame.format(**dict(zip(places, words, strict=True))),
                frozenset(f"an {kind}" if kind == "organization" else f"a {kind}" for kind in labels),
            )


def _tense() -> Iterator[tuple[str, frozenset[str]]]:
    for subject, (past, present, future), manner, place in product(SUBJECTS, VERBS, MANNERS, PLACES):
        for label, verb in (("past", past), ("present", present), ("future", f"will {future}")):
            yield f"the {subject} {verb} {manner.format(place)}", frozenset({label})


def _singular_plural() -> Iterator[tuple[str, frozenset[str]]]:
    for (nth, (one, several)), state, place in product(enumerate(NOUNS), STATES, PLACES):
        other = NOUNS[(nth + 1 + len(state + place) % (len(NOUNS) - 1)) % len(NOUNS)][0]
        for frame in ("the {} {} {} in the {}", "in the {3} the {0} {1} {2}"):
            yield frame.format(one, "is", state, place), frozenset({"one subject"})
            yield frame.format(several, "are", state, place), frozenset({"several subjects"})
            yield frame.format(f"{one} and the {other}", "are", state, place), frozenset({"several subjects"})


_TEXTS: Mapping[str, Callable[[], Iterator[tuple[str, frozenset[str]]]]] = {
    "geometry_of_truth": _geometry_of_truth,
    "relations": _relations,
    "sst2": _sst2,
    "md_gender": _md_gender,
    "snli": _snli,
    "ag_news": _ag_news,
    "ner": _ner,
    "tense": _tense,
    "singular_plural": _singular_plural,
}


def two_sentences(first: str, second: str) -> str:
    """A premise and a hypothesis as one text."""
    return f"first: {first} second: {second}"


def is_held_out(text: str) -> bool:
    """True where the hash of `text` keeps it for evaluation."""
    return blake2b(text.encode(), digest_size=4).digest()[0] % HELD_OUT_SHARE == 0


def questions(benchmark: str, labels: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Each question of a benchmark with its answer for a text that carries `labels`."""
    question = QUESTIONS[benchmark]
    for label in question.labels or (YES,):
        yield question.wording.format(label), YES if label in labels else NO


@cache
def items(benchmark: str, *, held_out: bool) -> tuple[Item, ...]:
    """Every template item of a benchmark's held-out or training part, each text with all its questions.

    Raises:
        KeyError: `benchmark` is not one of `QUESTIONS`.
    """
    labelled = dict(_TEXTS[benchmark]())  # a text that two frames make is one text
    return tuple(
        Item(text, question, answer)
        for text, labels in labelled.items()
        if is_held_out(text) is held_out
        for question, answer in questions(benchmark, labels)
    )


def words() -> frozenset[str]:
    """Every word of the nine benchmarks' texts, questions and answers, split at spaces, `:` and `?` apart."""
    found: set[str] = {YES, NO, ":", "?"}
    for benchmark in QUESTIONS:
        for part in (True, False):
            for item in items(benchmark, held_out=part):
                found.update(f"{item.text} {item.question}".replace("?", " ").replace(":", " ").split())
    return frozenset(found)
