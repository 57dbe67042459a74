"""Prompts made from templates, for use without a file of real ones. The generator knows what each prompt says."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b

from oven_recipes.oracle.attributes import FEELINGS, GREETINGS, MANNERS, TIMES, TOPICS
from oven_recipes.oracle.benchmark_templates import CITIES, NAMES, NOUNS, NUMBERS, PRONOUNS

LENGTHS = range(8, 26)
"""Words per prompt."""
OPTIONAL = 0.8
"""Share of prompts with a greeting, and of prompts with a place."""
HELD_OUT_SHARE = 5
"""One prompt in this many is held out of training."""


@dataclass(frozen=True)
class TemplatePrompt:
    """A prompt and the values of its attributes."""

    text: str
    values: Mapping[str, str]


def held_out(text: str) -> bool:
    """Whether a prompt belongs to the evaluation. Its hash decides, so every seed and stage agrees."""
    return blake2b(text.encode(), digest_size=4).digest()[0] % HELD_OUT_SHARE == 0


def prompts(count: int, rng: random.Random, *, evaluation: bool = False) -> list[TemplatePrompt]:
    """Return `count` different prompts from one side of the split."""
    made: dict[str, TemplatePrompt] = {}
    while len(made) < count:
        prompt = _draw(rng)
        if held_out(prompt.text) is evaluation:
            made[prompt.text] = prompt
    return list(made.values())


def _draw(rng: random.Random) -> TemplatePrompt:
    topic, feeling, time, manner = (rng.choice(list(values)) for values in (TOPICS, FEELINGS, TIMES, MANNERS))
    gender = rng.choice(list(NAMES))
    name, number = rng.choice(NAMES[gender]), rng.choice(NUMBERS[:6])
    values = {"topic": topic, "feeling": feeling, "time": time, "manner": manner, "person": name, "number": number}
    words = TOPICS[topic][1]
    singular, several = rng.choice(NOUNS)
    happening = f"{name} {rng.choice(TIMES[time])} {number} {singular if number == 'one' else several}"
    if rng.random() < OPTIONAL:
        values["place"] = rng.choice([city for cities in CITIES.values() for city in cities])
        happening += f" in {values['place']}"
    mood = rng.choice(FEELINGS[feeling][1])
    subject = PRONOUNS[gender][0]
    clauses = [
        happening,
        rng.choice(("{} is {} about the {}", "{} feels {} because of the {}")).format(subject, mood, rng.choice(words)),
        rng.choice(MANNERS[manner]).format(rng.choice(words)),
    ]
    rng.shuffle(clauses)
    if rng.random() < OPTIONAL:
        values["language"] = rng.choice(list(GREETINGS))
        clauses.insert(rng.choice((0, len(clauses))), rng.choice(GREETINGS[values["language"]][1]))
    return TemplatePrompt(" ".join(clauses), values)
