"""Generates prompts and questions with known answers from templates, for training without a question file."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b

from oven_recipes.oracle.questions import KnownAnswer, Question, QuestionedPrompt
from oven_recipes.oracle.template_words import ATTRIBUTES, PROMPT_NUMBERS, WORDS

OPTIONAL_PART_PROBABILITY = 0.8
"""Probability that a prompt names a place, and probability that it contains a greeting."""
HELD_OUT_DIVISOR = 5
"""One in this many prompts is reserved for evaluation."""


@dataclass(frozen=True)
class TemplatePrompt:
    """A prompt, and the values of its attributes, for example of its topic."""

    text: str
    values: Mapping[str, str]


def is_held_out(text: str) -> bool:
    """Return whether a prompt is reserved for evaluation."""
    return blake2b(text.encode(), digest_size=4).digest()[0] % HELD_OUT_DIVISOR == 0


def draw_prompts(count: int, rng: random.Random, *, evaluation: bool = False) -> list[TemplatePrompt]:
    """Return `count` different prompts from the evaluation or training set."""
    by_text: dict[str, TemplatePrompt] = {}
    while len(by_text) < count:
        prompt = _random_prompt(rng)
        if is_held_out(prompt.text) is evaluation:
            by_text[prompt.text] = prompt
    return list(by_text.values())


def _random_prompt(rng: random.Random) -> TemplatePrompt:
    topic, feeling, time, manner = (
        rng.choice(list(values)) for values in (WORDS.topics, WORDS.feelings, WORDS.times, WORDS.manners)
    )
    gender = rng.choice(list(WORDS.names))
    name, number = rng.choice(WORDS.names[gender]), rng.choice(PROMPT_NUMBERS)
    values = {"topic": topic, "feeling": feeling, "time": time, "manner": manner, "person": name, "number": number}
    (_, topic_words), (_, moods) = WORDS.topics[topic], WORDS.feelings[feeling]
    singular, several = rng.choice(WORDS.nouns)
    event = f"{name} {rng.choice(WORDS.times[time])} {number} {singular if number == 'one' else several}"
    if rng.random() < OPTIONAL_PART_PROBABILITY:
        values["place"] = rng.choice([city for cities in WORDS.cities.values() for city in cities])
        event += f" in {values['place']}"
    mood = rng.choice(moods)
    pronoun, _ = WORDS.pronouns[gender]
    feeling_frame = rng.choice(("{} is {} about the {}", "{} feels {} because of the {}"))
    clauses = [
        event,
        feeling_frame.format(pronoun, mood, rng.choice(topic_words)),
        rng.choice(WORDS.manners[manner]).format(rng.choice(topic_words)),
    ]
    rng.shuffle(clauses)
    if rng.random() < OPTIONAL_PART_PROBABILITY:
        values["language"] = rng.choice(list(WORDS.greetings))
        _, greetings = WORDS.greetings[values["language"]]
        clauses.insert(rng.choice((0, len(clauses))), rng.choice(greetings))
    return TemplatePrompt(" ".join(clauses), values)


DEFAULT_PROMPTS = 1000
DEFAULT_QUESTIONS = 8
"""Default number of questions per prompt, as in the published question file (7,997 for 1,000 prompts)."""
YES, NO = "yes", "no"


def template_dataset(seed: int, count: int = DEFAULT_PROMPTS, *, evaluation: bool = False) -> list[QuestionedPrompt]:
    """Return `count` prompts with questions. Evaluation prompts never appear in training."""
    rng = random.Random(f"oracle {'evaluation' if evaluation else 'training'} {seed}")
    selected = draw_prompts(count, rng, evaluation=evaluation)
    return [QuestionedPrompt(prompt.text, draw_questions(prompt, rng)) for prompt in selected]


def draw_questions(prompt: TemplatePrompt, rng: random.Random, count: int = DEFAULT_QUESTIONS) -> tuple[Question, ...]:
    """Return `count` questions about the prompt's attributes. Half are open, a quarter have the answer yes, and a
    quarter the answer no."""
    result: list[Question] = []
    while len(result) < count:
        names = list(prompt.values)
        rng.shuffle(names)
        for name in names[: count - len(result)]:
            kind = len(result) % 4  # 0 and 1 are open, 2 has the answer yes, and 3 has the answer no
            if kind < 2:
                result.append(open_question(prompt, name, rng))
            else:
                result.append(closed_question(prompt, name, kind == 2, rng))
    rng.shuffle(result)
    return tuple(result)


def open_question(prompt: TemplatePrompt, name: str, rng: random.Random) -> Question:
    """Return an open question about an attribute. The true value is a specific answer, and a broader term is vague."""
    attribute, value = ATTRIBUTES[name], prompt.values[name]
    broader_term = attribute.values[value]
    terms = dict.fromkeys((*attribute.values, *attribute.values.values()))
    wrong = tuple(term for term in terms if term not in (value, broader_term))
    vague = (broader_term,) if broader_term != value else ()
    return Question(rng.choice(attribute.open), KnownAnswer((value,), vague, wrong))


def closed_question(prompt: TemplatePrompt, name: str, expect_yes: bool, rng: random.Random) -> Question:
    """Return a yes/no question about an attribute. "yes" or "no" alone is a vague answer, and followed by the true
    value a specific answer."""
    attribute, value = ATTRIBUTES[name], prompt.values[name]
    other_values = [candidate for candidate in attribute.values if candidate != value]
    named_value = value if expect_yes else rng.choice(other_values)
    word, opposite = (YES, NO) if expect_yes else (NO, YES)
    broader_term = attribute.values[value]
    wrong = (
        opposite,
        *(f"{opposite} {other_value}" for other_value in other_values),
        *(f"{word} {other_value}" for other_value in other_values),
    )
    vague = (word, f"{word} {broader_term}") if broader_term != value else (word,)
    answer = KnownAnswer((f"{word} {value}",), vague, wrong)
    return Question(rng.choice(attribute.closed).format(named_value), answer)
