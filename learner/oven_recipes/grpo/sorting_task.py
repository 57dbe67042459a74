"""The task of sorting a prompt's digits, `S5203=` -> `0235`, and the committee's rules for it.

The rules check that the answer is correct, has the form of an answer, and has the correct length. Only the first has
weight. The others separate a policy with the correct form but wrong answers from one that lost the form. This module
does not import torch.
"""

import random
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from oven_learner.rewards.verdicts import RewardFunction

HELD_OUT_MODULUS = 5  # one digit string in five is held out


@dataclass(frozen=True)
class Example:
    """A prompt, its correct answer and the name of its level."""

    prompt: str
    answer: str
    level: str


def example(digits: str) -> Example:
    """Return the example whose answer is `digits` in ascending order. Repeated digits stay repeated."""
    return Example(prompt=f"S{digits}=", answer="".join(sorted(digits)), level=f"len{len(digits)}")


def is_held_out(digits: str) -> bool:
    """Return whether a digit string belongs to the evaluation set. A hash of the digits decides, so that every process,
    seed and warm-up uses the same split."""
    return zlib.crc32(digits.encode()) % HELD_OUT_MODULUS == 0


def draw_digits(length: int, rng: random.Random, *, evaluation: bool = False) -> str:
    """Return a random string of `length` digits, uniform over its side of the split."""
    while True:
        digits = f"{rng.randrange(10**length):0{length}d}"
        if is_held_out(digits) is evaluation:
            return digits


def pool(length: int, count: int, rng: random.Random, *, evaluation: bool = False) -> list[Example]:
    """Return up to `count` different examples of one level. Short levels, such as 3 digits, have fewer."""
    if 10**length <= 4 * count:  # if most strings are needed, list one side of the split and shuffle it
        all_digits = (f"{number:0{length}d}" for number in range(10**length))
        candidates = [digits for digits in all_digits if is_held_out(digits) is evaluation]
        rng.shuffle(candidates)
        return [example(digits) for digits in candidates[:count]]
    chosen: dict[str, None] = {}  # a dict keeps the order of the draws, unlike a set
    while len(chosen) < count:
        chosen[draw_digits(length, rng, evaluation=evaluation)] = None
    return [example(digits) for digits in chosen]


def training_pools(lengths: Sequence[int], count: int, seed: int) -> list[list[Example]]:
    """Return up to `count` training prompts of each level, the easiest level first."""
    rng = random.Random(f"prompts {seed}")
    return [pool(length, count, rng) for length in sorted(lengths)]


HABITS: tuple[Callable[[str], str], ...] = (
    lambda digits: "".join(sorted(digits, reverse=True)),
    lambda digits: digits,
    lambda digits: digits[::-1],
    lambda digits: digits[-1] * len(digits),
)
"""Wrong habits that the warm-up teaches in addition to correct answers: sort in descending order, copy, reverse, repeat
the last digit."""


def habit_pairs(lengths: tuple[int, ...], correct_share: float, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Yield (prompt, target) pairs for the warm-up forever. The target is correct with probability
    `correct_share`, otherwise a habit. So the policy *can* sort but does so only some of the time, like a pre-trained
    model. GRPO then selects a behaviour instead of discovering one, so it learns within a hundred steps."""
    while True:
        digits = draw_digits(rng.choice(lengths), rng)
        task = example(digits)
        yield task.prompt, task.answer if rng.random() < correct_share else rng.choice(HABITS)(digits)


LogMetric = Callable[[str, float], None]


def exact_match(
    completions: list[str], answer: list[str], level: list[str], log_metric: LogMetric | None = None, **_: Any
) -> list[float | None]:
    """Return one reward per completion, in batch order, with TRL's signature. Each level's mean is logged as
    `reward/<level>`. Levels missing from the batch log nothing, because 0 would look like a failure."""
    rewards = [float(text == expected) for text, expected in zip(completions, answer, strict=True)]
    if log_metric is not None:
        by_level: defaultdict[str, list[float]] = defaultdict(list)
        for name, reward in zip(level, rewards, strict=True):
            by_level[name].append(reward)
        for name, values in by_level.items():
            log_metric(f"reward/{name}", sum(values) / len(values))
    return [*rewards]  # a new list, because TRL's type allows None for a reward that does not apply


def has_answer_format(completions: list[str], **_: Any) -> list[float | None]:
    """Return 1 for an answer of digits only, otherwise 0."""
    return [float(text.isascii() and text.isdigit()) for text in completions]


def has_correct_length(completions: list[str], answer: list[str], **_: Any) -> list[float | None]:
    """Return 1 for an answer as long as the correct one, falling to 0 for an empty one or one twice as long."""
    return [
        max(0.0, 1 - abs(len(text) - len(expected)) / len(expected))
        for text, expected in zip(completions, answer, strict=True)
    ]


RULES: dict[str, RewardFunction] = {"exact": exact_match, "format": has_answer_format, "length": has_correct_length}
WEIGHTS = {"format": 0.0, "length": 0.0}
"""Weights of the members. Others, including remote members, have weight 1."""
