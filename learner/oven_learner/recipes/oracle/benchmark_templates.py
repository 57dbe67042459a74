"""Template texts of the nine evaluation benchmarks, for when their published files are not at hand.

They have the published benchmarks' questions and labels, but sentences put together from a small
vocabulary that the model made on the spot can learn. They are not the published benchmarks: every
output that rests on them says `templates`.

Lower case and without punctuation inside a sentence, so that a word-level tokenizer has one token
for each word. A text's hash decides whether it is held out: training may use `items(...,
held_out=False)` alone, evaluation the others alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from hashlib import blake2b
from itertools import product
from typing import NamedTuple

YES = "yes"
NO = "no"

HELD_OUT_SHARE = 4
"""One text in so many is held out: a quarter of each benchmark is above 250 items, half of them yes."""


class Question(NamedTuple):
    """One benchmark's question: `wording` with a place for a label, and the labels it is asked of."""

    wording: str
    labels: tuple[str, ...]
    """Empty where the question has no label, as in "is this statement true?"."""


class Item(NamedTuple):
    """A text, a question about it and the right answer, `yes` or `no`."""

    text: str
    question: str
    answer: str


QUESTIONS: Mapping[str, Question] = {
    "geometry_of_truth": Question("is this statement true?", ()),
    "relations": Question("is this fact correct?", ()),
    "sst2": Question("is the feeling of this text {}?", ("positive", "negative")),
    "md_gender": Question("is this text about a {} person?", ("female", "male")),
    "snli": Question("does the second sentence follow from the first?", ()),
    "ag_news": Question("is this text about {}?", ("world politics", "sports", "business", "science")),
    "ner": Question("does this text name {}?", ("a person", "a place", "an organization")),
    "tense": Question("is this sentence in the {} tense?", ("past", "present", "future")),
    "singular_plural": Question("does this sentence have {}?", ("one subject", "several subjects")),
}
"""The nine benchmarks in the order in which they are reported, each with its question."""

LEADS = ("", "i read that ", "they say that ", "we know that ", "the book says that ")

CITIES = {
    "france": ("paris", "lyon"), "italy": ("rome", "milan"), "japan": ("tokyo", "osaka"),
    "egypt": ("cairo", "luxor"), "spain": ("madrid", "seville"), "germany": ("berlin", "munich"),
    "india": ("delhi", "mumbai"), "norway": ("oslo", "bergen"),
}  # fmt: skip
"""Countries, each with its capital and another city."""

CITY_FRAMES = ("{} is in {}", "{} is a city in {}", "the city of {} is in {}", "{} lies in {}")

NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
"""In ascending order."""

COMPARISONS = (("larger", 1), ("smaller", -1))

RELATIONS: Mapping[str, tuple[tuple[str, ...], Mapping[str, str]]] = {
    "capital": (
        ("the capital of {} is {}", "the capital city of {} is {}", "{} has the capital {}", "the capital of the country {} is {}"),
        {country: cities[0] for country, cities in CITIES.items()},
    ),
    "young": (
        ("the young of a {} is a {}", "a young {} is a {}", "a {} has a young {}", "a small {} is a {}"),
        {"dog": "puppy", "cat": "kitten", "cow": "calf", "horse": "foal", "sheep": "lamb", "goat": "kid", "lion": "cub", "duck": "duckling"},
    ),
    "color": (
        ("the color of {} is {}", "{} is {}", "{} has the color {}", "we call the color of {} {}"),
        {"grass": "green", "snow": "white", "coal": "black", "blood": "red", "sky": "blue", "chocolate": "brown", "banana": "yellow", "carrot": "orange"},
    ),
    "opposite": (
        ("the opposite of {} is {}", "{} is the opposite of {}", "the word {} is the opposite of {}", "we call the opposite of {} {}"),
        {"hot": "cold", "big": "small", "old": "new", "fast": "slow", "dark": "light", "open": "closed", "high": "low", "rich": "poor"},
    ),
}  # fmt: skip
"""Relations: their frames with places for subject and object, and their facts."""

REVIEWED = ("film", "book", "song", "play", "show", "story", "meal", "hotel", "actor", "music")
DEGREES = ("very ", "really ", "so ", "quite ", "")
FEELINGS = {
    "positive": ("good", "great", "wonderful", "funny", "lovely", "brilliant", "charming", "beautiful"),
    "negative": ("bad", "awful", "terrible", "boring", "dull", "stupid", "ugly", "weak"),
}
REVIEW_FRAMES = ("the {} was {}{}", "i think the {} is {}{}")

NAMES = {
    "female": ("anna", "mary", "susan", "laura", "emma", "julia", "helen", "alice", "sarah", "nina"),
    "male": ("john", "peter", "mark", "david", "paul", "james", "robert", "thomas", "simon", "frank"),
}
PRONOUNS = {"female": ("she", "her"), "male": ("he", "his")}
PERSON_FRAMES = (
    "{name} says that {subject} likes the {thing}",
    "{name} lost {possessive} {thing} and now {subject} is sad",
    "{name} took {possessive} {thing} to the {place}",
)
THINGS = ("music", "book", "car", "dog", "cat", "horse", "phone", "coat")
PLACES = ("park", "house", "street", "garden", "kitchen", "school")

KINDS = {"man": "person", "woman": "person", "boy": "child", "girl": "child", "dog": "animal", "cat": "animal"}
DOINGS = ("running", "sleeping", "eating", "jumping", "playing", "sitting")
PREMISES = ("a {} is {} in the {}", "there is a {} {} in the {}")

NEWS = {
    "world politics": (("president", "minister", "army", "government", "leader", "rebels"), ("met", "attacked", "left", "warned"),
              ("border", "embassy", "talks", "election", "refugees", "capital")),
    "sports": (("team", "coach", "player", "striker", "champion", "club"), ("won", "lost", "played", "missed"),
               ("match", "cup", "game", "final", "race", "league")),
    "business": (("bank", "company", "investor", "market", "owner", "firm"), ("sold", "bought", "raised", "cut"),
                 ("shares", "profits", "prices", "stocks", "jobs", "debts")),
    "science": (("scientist", "engineer", "researcher", "astronomer", "laboratory", "doctor"), ("found", "built", "tested", "measured"),
                ("planet", "virus", "robot", "computer", "satellite", "gene")),
}  # fmt: skip
"""Topics, each with who, did and what."""

DAYS = ("today", "on monday", "on friday", "this week", "last night")

ORGANIZATIONS = ("google", "microsoft", "nato", "unicef", "toyota", "reuters", "nasa", "siemens")

ENTITY_FRAMES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("{person} flew to {place}", ("person", "place")),
    ("{person} lives in {place}", ("person", "place")),
    ("{person} works for {organization}", ("person", "organization")),
    ("{organization} called {person} {day}", ("organization", "person")),
    ("{organization} has an office in {place}", ("organization", "place")),
    ("{organization} sold the {thing} {day}", ("organization",)),
    ("{person} lost the {thing} {day}", ("person",)),
    ("the train to {place} left {day}", ("place",)),
)
"""Frames, each with the kinds of entity that it names."""

SUBJECTS = ("teacher", "doctor", "farmer", "student", "driver", "painter", "singer", "boy", "girl", "child")
VERBS = (
    ("walked", "walks", "walk"), ("looked", "looks", "look"), ("went", "goes", "go"), ("came", "comes", "come"),
    ("talked", "talks", "talk"), ("ran", "runs", "run"), ("drove", "drives", "drive"), ("sang", "sings", "sing"),
)  # fmt: skip
"""Past, present, and the form after "will"."""
MANNERS = ("to the {}", "near the {}", "in the {}")

NOUNS = (
    ("teacher", "teachers"), ("doctor", "doctors"), ("farmer", "farmers"), ("student", "students"), ("driver", "drivers"),
    ("boy", "boys"), ("girl", "girls"), ("dog", "dogs"), ("cat", "cats"), ("horse", "horses"),
)  # fmt: skip
STATES = ("happy", "sad", "tired", "hungry", "old", "young")


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
