"""What `bench oracle` asks beside the benchmarks: questions about held-out prompts, of which half are open: there, what
the question says by itself is seldom enough."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

from oven_learner.rewards.stated_confidence import parse_oracle_output
from oven_recipes.activations.blocks import layer_at
from oven_recipes.activations.capture import MOST_TOKENS, Activation, capture
from oven_recipes.activations.injection import ActivationInjection
from oven_recipes.oracle.evaluation import PERCENTS, cycle
from oven_recipes.oracle.generated_answers import generated_answers
from oven_recipes.oracle.questions import KnownAnswer
from oven_recipes.oracle.template_questions import template_dataset

RIGHT: Final = 0.5
"""The least informativeness of an answer that counts as right: it is true, and may leave something unsaid."""


class PromptQuestions:
    """One question with a known answer about each of `count` held-out prompts, a third of them at each depth."""

    def __init__(
        self, model: Any, tokenizer: Any, injection: ActivationInjection, seed: int, count: int, most_words: int
    ) -> None:
        """`most_words`: tokens of an answer at most."""
        rng = random.Random(f"held-out prompts {seed}")
        layers = [layer_at(model, percent) for percent in PERCENTS]
        asked = template_dataset(seed, count, evaluation=True)
        texts = [prompt.prompt for prompt in asked]
        read = capture(model, tokenizer, texts, layers, [rng.randint(1, MOST_TOKENS) for _ in texts])
        self._activations: list[Activation] = []
        self._questions: list[str] = []
        self._answers: list[KnownAnswer] = []
        for at, prompt in enumerate(asked):
            question = rng.choice([one for one in prompt.questions if one.answer is not None])
            assert question.answer is not None
            self._activations.append(read[at * len(layers) + at % len(layers)])
            self._questions.append(question.text)
            self._answers.append(question.answer)
        self._parts = model, tokenizer, injection, most_words

    def own(self) -> float:
        """The share of right answers, 0 to 1, with each prompt's own activations; what does not parse is wrong."""
        return self._right(self._activations)

    def shuffled(self) -> float:
        """With those of another prompt, at the same depth."""
        theirs = list(self._activations)
        for depth in range(len(PERCENTS)):
            places = range(depth, len(theirs), len(PERCENTS))
            for place, other in zip(places, cycle(len(places), f"depth {depth}"), strict=True):
                theirs[place] = self._activations[places[other]]
        return self._right(theirs)

    def zero(self) -> float:
        """With none: the places stay as they are."""
        return self._right(self._activations, unchanged=True)

    def _right(self, activations: Sequence[Activation], *, unchanged: bool = False) -> float:
        model, tokenizer, injection, most_words = self._parts
        outputs = generated_answers(
            model, tokenizer, injection, activations, self._questions, max_new_tokens=most_words, unchanged=unchanged
        )
        parsed = map(parse_oracle_output, outputs)
        told = [
            one is not None and answer.informativeness(one.text) >= RIGHT
            for one, answer in zip(parsed, self._answers, strict=True)
        ]
        return sum(told) / len(told)
