"""Template texts of the nine evaluation benchmarks, for when their published files are not at hand.

They have the published benchmarks' questions and labels, but sentences put together from a small
vocabulary that the model made on the spot can learn. They are not the published benchmarks: every
output that rests on them says `templates`.

Lower case and without punctuation inside a sentence, so that a word-level tokenizer has one token
for each word. `benchmark_items` puts the sentences together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Question(NamedTuple):
    """One benchmark's question: `wording` with a place for a label, and the labels it is asked of."""

    wording: str
    labels: tuple[str, ...]
    """Empty where the question has no label, as in "is this statement true?"."""


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
        ("the capital of {} is {}", "the capital city of {} is {}", "{} has the capital {}",
         "the capital of the country {} is {}"),
        {country: cities[0] for country, cities in CITIES.items()},
    ),
    "young": (
        ("the young of a {} is a {}", "a young {} is a {}", "a {} has a young {}", "a small {} is a {}"),
        {"dog": "puppy", "cat": "kitten", "cow": "calf", "horse": "foal",
         "sheep": "lamb", "goat": "kid", "lion": "cub", "duck": "duckling"},
    ),
    "color": (
        ("the color of {} is {}", "{} is {}", "{} has the color {}", "we call the color of {} {}"),
        {"grass": "green", "snow": "white", "coal": "black", "blood": "red",
         "sky": "blue", "chocolate": "brown", "banana": "yellow", "carrot": "orange"},
    ),
    "opposite": (
        ("the opposite of {} is {}", "{} is the opposite of {}", "the word {} is the opposite of {}",
         "we call the opposite of {} {}"),
        {"hot": "cold", "big": "small", "old": "new", "fast": "slow",
         "dark": "light", "open": "closed", "high": "low", "rich": "poor"},
    ),
}  # fmt: skip
"""Relations: their frames with places for subject and object, and their facts."""

REVIEWED = ("film", "book", "song", "play", "show", "story", "meal", "hotel", "actor", "music")
DEGREES = ("very ", "so ", "quite ", "")
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
    "world politics": (
        ("president", "minister", "army", "government", "leader", "rebels"),
        ("met", "attacked", "left", "warned"),
        ("border", "embassy", "talks", "election", "refugees", "capital"),
    ),
    "sports": (
        ("team", "coach", "player", "striker", "champion", "club"),
        ("won", "lost", "played", "missed"),
        ("match", "cup", "game", "final", "race", "league"),
    ),
    "business": (
        ("bank", "company", "investor", "market", "owner", "firm"),
        ("sold", "bought", "raised", "cut"),
        ("shares", "profits", "prices", "stocks", "jobs", "debts"),
    ),
    "science": (
        ("scientist", "engineer", "researcher", "astronomer", "laboratory", "doctor"),
        ("found", "built", "tested", "measured"),
        ("planet", "virus", "robot", "computer", "satellite", "gene"),
    ),
}
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
    ("teacher", "teachers"), ("doctor", "doctors"), ("farmer", "farmers"), ("student", "students"),
    ("driver", "drivers"), ("boy", "boys"), ("girl", "girls"), ("dog", "dogs"), ("cat", "cats"), ("horse", "horses"),
)  # fmt: skip
"""Singular and plural."""
STATES = ("happy", "sad", "tired", "hungry", "old", "young")
