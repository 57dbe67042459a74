"""Loads templates.yaml, which contains the words of the template prompts and of the nine benchmarks' template texts.

The small model can learn these words. The template texts are not the published benchmarks, so reports mark every result
from them with `templates`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import yaml
from pydantic import BaseModel, ConfigDict


class BenchmarkQuestion(NamedTuple):
    """A benchmark's question. The wording has a placeholder for a label, unless the question has no labels."""

    wording: str
    labels: tuple[str, ...]
    """Labels to ask about. Empty for a question without a label, such as "is this statement true?"."""


Texts = tuple[str, ...]


class Words(BaseModel):
    """The content of templates.yaml, whose comments describe each table."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    questions: dict[str, BenchmarkQuestion]
    leads: Texts
    cities: dict[str, tuple[str, str]]
    city_frames: Texts
    numbers: Texts
    comparisons: tuple[tuple[str, int], ...]
    relations: dict[str, tuple[Texts, dict[str, str]]]
    review_subjects: Texts
    degrees: Texts
    reviews: dict[str, Texts]
    review_frames: Texts
    names: dict[str, Texts]
    pronouns: dict[str, tuple[str, str]]
    person_frames: Texts
    things: Texts
    places: Texts
    kinds: dict[str, str]
    actions: Texts
    premises: Texts
    news: dict[str, tuple[Texts, Texts, Texts]]
    days: Texts
    organizations: Texts
    entity_frames: tuple[tuple[str, Texts], ...]
    subjects: Texts
    verbs: tuple[tuple[str, str, str], ...]
    settings: Texts
    nouns: tuple[tuple[str, str], ...]
    states: Texts
    topics: dict[str, tuple[str, Texts]]
    feelings: dict[str, tuple[str, Texts]]
    greetings: dict[str, tuple[str, Texts]]
    manners: dict[str, Texts]
    times: dict[str, Texts]
    attributes: dict[str, tuple[Texts, Texts]]


WORDS = Words.model_validate(yaml.safe_load(Path(__file__).with_name("templates.yaml").read_text()))
QUESTIONS = WORDS.questions


class Attribute(NamedTuple):
    """An attribute of template prompts, such as the topic, which questions ask about."""

    values: Mapping[str, str]
    """Value → a broader term that is also true, or the value itself if there is none."""
    open: Texts
    """Wordings of an open question."""
    closed: Texts
    """Wordings of a yes/no question, with a placeholder for the value."""


ABSENT = "none"
"""Stands for a missing attribute in a list of attribute values."""
PROMPT_NUMBERS = WORDS.numbers[:6]  # the numbers that occur in template prompts

_VALUES: Mapping[str, Mapping[str, str]] = {
    "topic": {topic: field for topic, (field, _) in WORDS.topics.items()},
    "feeling": {feeling: kind for feeling, (kind, _) in WORDS.feelings.items()},
    "language": {language: family for language, (family, _) in WORDS.greetings.items()},
    "place": {city: country for country, cities in WORDS.cities.items() for city in cities},
    "person": {name: gender for gender, names in WORDS.names.items() for name in names},
    "number": {number: "one" if number == "one" else "several" for number in PROMPT_NUMBERS},
    "time": {time: time for time in WORDS.times},
    "manner": {manner: manner for manner in WORDS.manners},
}
ATTRIBUTES = {name: Attribute(_VALUES[name], *wordings) for name, wordings in WORDS.attributes.items()}
"""The attributes of template prompts by name."""
