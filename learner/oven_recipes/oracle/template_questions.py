"""Questions about template prompts, with their answers: half are open; of the closed ones half are answered with no."""

from __future__ import annotations

import random

from oven_recipes.oracle.attributes import ATTRIBUTES
from oven_recipes.oracle.questions import KnownAnswer, Question, QuestionedPrompt
from oven_recipes.oracle.template_prompts import TemplatePrompt, prompts

PROMPTS = 1000
QUESTIONS = 8
"""Questions per prompt, as in the file of real ones (7,997 about 1,000 prompts)."""
YES, NO = "yes", "no"


def template_dataset(seed: int, count: int = PROMPTS, *, evaluation: bool = False) -> list[QuestionedPrompt]:
    """Return `count` prompts with QUESTIONS questions each. Evaluation prompts never appear in training."""
    rng = random.Random(f"oracle {'evaluation' if evaluation else 'training'} {seed}")
    made = prompts(count, rng, evaluation=evaluation)
    return [QuestionedPrompt(prompt.text, "english", questions(prompt, rng)) for prompt in made]


def questions(prompt: TemplatePrompt, rng: random.Random, count: int = QUESTIONS) -> tuple[Question, ...]:
    """Return `count` questions about attributes that the prompt has: half open, a quarter with the answer yes, a
    quarter with the answer no."""
    made: list[Question] = []
    while len(made) < count:
        names = list(prompt.values)
        rng.shuffle(names)
        for name in names[: count - len(made)]:
            turn = len(made) % 4
            made.append(open_question(prompt, name, rng) if turn < 2 else closed_question(prompt, name, turn == 2, rng))
    rng.shuffle(made)
    return tuple(made)


def open_question(prompt: TemplatePrompt, name: str, rng: random.Random) -> Question:
    """Ask for an attribute's value. The value itself is specific; a broader term that is also true is right."""
    attribute, value = ATTRIBUTES[name], prompt.values[name]
    broad = attribute.values[value]
    terms = dict.fromkeys((*attribute.values, *attribute.values.values()))
    wrong = tuple(term for term in terms if term not in (value, broad))
    return Question(rng.choice(attribute.open), KnownAnswer((value,), (broad,) if broad != value else (), wrong))


def closed_question(prompt: TemplatePrompt, name: str, affirmed: bool, rng: random.Random) -> Question:
    """Ask whether the attribute has some value. `yes` and `no` are right; with the true value beside it the answer is
    specific."""
    attribute, value = ATTRIBUTES[name], prompt.values[name]
    others = [candidate for candidate in attribute.values if candidate != value]
    named_value = value if affirmed else rng.choice(others)
    word, opposite, broad = *((YES, NO) if affirmed else (NO, YES)), attribute.values[value]
    wrong = (
        opposite,
        *(f"{opposite} {other_value}" for other_value in others),
        *(f"{word} {other_value}" for other_value in others),
    )
    right = (word, f"{word} {broad}") if broad != value else (word,)
    answer = KnownAnswer((f"{word} {value}",), right, wrong)
    return Question(rng.choice(attribute.closed).format(named_value), answer, closed=True)
