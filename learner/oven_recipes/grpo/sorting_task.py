"""The task of sorting a prompt's digits (`S5203=` → `0235`), and the reward functions for it.

The functions check that the answer is correct, consists of digits, and has the correct length. Only correctness counts
in the reward. The other two show whether a policy whose answers are wrong still keeps to the format. This module does
not import torch."""

import random
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from oven_learner.rewards.verdicts import RewardFunction

HELD_OUT_DIVISOR = 5  # one digit string in five is held out


@dataclass(frozen=True)
class Example:
    """A prompt, its correct answer and the name of its level."""

    prompt: str
    answer: str
    level: str


def make_example(digits: str) -> Example:
    """Return the example whose answer is `digits` in ascending order. Repeated digits stay repeated."""
    return Example(prompt=f"S{digits}=", answer="".join(sorted(digits)), level=f"len{len(digits)}")


def is_held_out(digits: str) -> bool:
    """Return whether a digit string is reserved for evaluation. A hash decides, so all processes and seeds agree."""
    return zlib.crc32(digits.encode()) % HELD_OUT_DIVISOR == 0


def draw_digits(length: int, rng: random.Random, *, evaluation: bool = False) -> str:
    """Return a random string of `length` digits, for evaluation or for training."""
    while True:
        digits = f"{rng.randrange(10**length):0{length}d}"
        if is_held_out(digits) is evaluation:
            return digits


def draw_pool(length: int, count: int, rng: random.Random, *, evaluation: bool = False) -> list[Example]:
    """Return `count` different examples of one level, or all of its examples if there are fewer."""
    if 10**length <= 4 * count:  # if many of the strings are needed, list and shuffle all
        all_digits = (f"{number:0{length}d}" for number in range(10**length))
        candidates = [digits for digits in all_digits if is_held_out(digits) is evaluation]
        rng.shuffle(candidates)
        return [make_example(digits) for digits in candidates[:count]]
    chosen: dict[str, None] = {}  # a dict keeps the order of the draws, unlike a set
    while len(chosen) < count:
        chosen[draw_digits(length, rng, evaluation=evaluation)] = None
    return [make_example(digits) for digits in chosen]


def training_pools(lengths: Sequence[int], count: int, seed: int) -> list[list[Example]]:
    """Return up to `count` training prompts of each level, the easiest level first."""
    rng = random.Random(f"prompts {seed}")
    return [draw_pool(length, count, rng) for length in sorted(lengths)]


HABITS: tuple[Callable[[str], str], ...] = (
    lambda digits: "".join(sorted(digits, reverse=True)),
    lambda digits: digits,
    lambda digits: digits[::-1],
    lambda digits: digits[-1] * len(digits),
)
"""Wrong rules that the warm-up also teaches: sort in descending order, copy, reverse, repeat the last digit."""


def habit_pairs(lengths: tuple[int, ...], correct_share: float, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Yield (prompt, target) pairs for the warm-up forever. The target is correct with probability `correct_share`, and
    otherwise follows a random habit. After the warm-up, the policy sorts only some of the time. GRPO can select sorting
    instead of discovering it, so the policy learns to sort within a hundred steps."""
    while True:
        digits = draw_digits(rng.choice(lengths), rng)
        example = make_example(digits)
        target = example.answer if rng.random() < correct_share else rng.choice(HABITS)(digits)
        yield example.prompt, target


LogMetric = Callable[[str, float], None]


def exact_match(
    completions: list[str], answer: list[str], level: list[str], log_metric: LogMetric | None = None, **_: Any
) -> list[float | None]:
    """Return 1 for each correct completion, otherwise 0. The signature is TRL's. The mean of each level in the batch is
    logged as `reward/<level>`."""
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
    """Return 1 for an answer with the correct length, and less for others. An empty answer, or one that is twice as
    long, gets 0."""
    return [
        max(0.0, 1 - abs(len(text) - len(expected)) / len(expected))
        for text, expected in zip(completions, answer, strict=True)
    ]


def has_small_steps(completions: list[str], **_: Any) -> list[float | None]:
    """Return 1 minus the mean step between neighbouring digits, in ninths, or 0 for an answer that is not digits only.
    Of all orders of the same digits, the sorted ones have the smallest steps. But the rule does not check that they are
    the prompt's digits, so a policy can exploit it: one repeated digit gets the full score."""
    return [1 - _mean_step(text) / 9 if text.isascii() and text.isdigit() else 0.0 for text in completions]


def _mean_step(digits: str) -> float:
    steps = [abs(int(first) - int(second)) for first, second in pairwise(digits)]
    return sum(steps) / len(steps) if steps else 0.0


RULES: dict[str, RewardFunction] = {"exact": exact_match, "format": has_answer_format, "length": has_correct_length}
WEIGHTS = {"format": 0.0, "length": 0.0}
"""Weights of reward functions. The others, including remote judges, have weight 1."""
STAGED_RULES: dict[str, RewardFunction] = {"smooth": has_small_steps}
"""Reward functions that a policy can exploit. A committee has them only in the starts that stage this fault."""
