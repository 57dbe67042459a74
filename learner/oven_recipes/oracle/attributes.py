"""The topics of the offline prompts: attributes, their values, and the words that reveal them. Pure data. Shared with
the benchmarks' templates where they have words for the same thing, so that one small vocabulary is enough."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from oven_recipes.oracle.benchmark_templates import CITIES, NAMES, NUMBERS


@dataclass(frozen=True)
class Attribute:
    """The subject of a question: its values, a broader term for each, and wordings of questions."""

    values: Mapping[str, str]
    """Each value, and a broader term that is also true and says less; the value itself if there is none."""
    open: tuple[str, ...]
    """Wordings of the open question."""
    closed: tuple[str, ...]
    """Wordings of the yes/no question, with a place for the value."""


TOPICS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "cooking": ("home", ("soup", "bread", "oven", "recipe", "butter")),
    "gardening": ("home", ("roses", "seeds", "spade", "hedge", "lawn")),
    "sports": ("leisure", ("match", "league", "coach", "striker", "race")),
    "music": ("leisure", ("guitar", "concert", "piano", "melody", "choir")),
    "travel": ("leisure", ("flight", "luggage", "passport", "hotel", "beach")),
    "business": ("work", ("profits", "shares", "bank", "investor", "firm")),
    "law": ("work", ("judge", "court", "lawyer", "contract", "trial")),
    "medicine": ("science", ("fever", "nurse", "pills", "surgery", "virus")),
    "space": ("science", ("planet", "satellite", "rocket", "astronomer", "comet")),
    "computers": ("science", ("laptop", "software", "keyboard", "robot", "code")),
}
"""Topics, each with its field and the words that reveal it."""

FEELINGS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "happy": ("good", ("happy", "glad", "delighted")),
    "proud": ("good", ("proud", "confident", "satisfied")),
    "sad": ("bad", ("sad", "unhappy", "tearful")),
    "angry": ("bad", ("angry", "furious", "annoyed")),
    "afraid": ("bad", ("afraid", "scared", "worried")),
    "bored": ("bad", ("bored", "tired", "weary")),
}
"""Feelings, each with whether it is positive, and its words."""

GREETINGS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "english": ("germanic", ("hello", "welcome")),
    "german": ("germanic", ("hallo", "guten")),
    "french": ("romance", ("bonjour", "salut")),
    "spanish": ("romance", ("hola", "buenas")),
}
"""Languages, each with its family and words of greeting."""

MANNERS: Mapping[str, tuple[str, ...]] = {
    "polite": ("please help with the {}", "thanks for the {}", "could you kindly explain the {}"),
    "rude": ("answer now about the {} fool", "hurry up with the {}", "shut up about the {}"),
}
"""How the message asks, each with wordings that have a place for a word of the topic."""

TIMES: Mapping[str, tuple[str, ...]] = {
    "past": ("saw", "met", "lost"),
    "present": ("sees", "meets", "loses"),
    "future": ("will see", "will meet", "will lose"),
}
"""When it happens, each with the same verbs."""

ABSENT = "none"
"""The value of an attribute that a prompt lacks, in a list of all values."""

ATTRIBUTES: Mapping[str, Attribute] = {
    "topic": Attribute(
        {topic: field for topic, (field, _) in TOPICS.items()},
        ("what is the topic?", "what is this text about?"),
        ("is the topic {}?", "is this text about {}?"),
    ),
    "feeling": Attribute(
        {feeling: kind for feeling, (kind, _) in FEELINGS.items()},
        ("what is the feeling?", "how does this person feel?"),
        ("is the feeling {}?", "does this person feel {}?"),
    ),
    "language": Attribute(
        {language: family for language, (family, _) in GREETINGS.items()},
        ("what is the language of the greeting?", "which language is the greeting?"),
        ("is the greeting {}?", "is the language of the greeting {}?"),
    ),
    "place": Attribute(
        {city: country for country, cities in CITIES.items() for city in cities},
        ("what is the place?", "where is it?"),
        ("is the place {}?", "is it in {}?"),
    ),
    "person": Attribute(
        {name: gender for gender, names in NAMES.items() for name in names},
        ("who is the person?", "who is it about?"),
        ("is the person {}?", "is it about {}?"),
    ),
    "number": Attribute(
        {number: "one" if number == "one" else "several" for number in NUMBERS[:6]},
        ("what is the number?", "how many are there?"),
        ("is the number {}?", "are there {}?"),
    ),
    "time": Attribute(
        {time: time for time in TIMES},
        ("what is the tense?", "when is it?"),
        ("is the tense {}?", "is it in the {}?"),
    ),
    "manner": Attribute(
        {manner: manner for manner in MANNERS},
        ("what is the manner?", "how does this person ask?"),
        ("is the manner {}?", "does this person sound {}?"),
    ),
}
