"""The task: sort the digits of a prompt, `S5203=` -> `0235`. Pure Python, so that the rules are testable alone."""

import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

HELD_OUT_SHARE = 5  # one digit string in five is never trained on


@dataclass(frozen=True)
class Example:
    """One prompt, its right answer and its level's name."""

    prompt: str
    answer: str
    level: str


def example(digits: str) -> Example:
    """The example that asks for `digits` to be sorted ascending; repeated digits stay repeated."""
    return Example(prompt=f"S{digits}=", answer="".join(sorted(digits)), level=f"len{len(digits)}")


def held_out(digits: str) -> bool:
    """Whether a digit string belongs to the evaluation side.

    A hash of the digits decides, not a draw, so that every process, seed and warm-up agrees on the split.
    """
    return zlib.crc32(digits.encode()) % HELD_OUT_SHARE == 0


def draw(length: int, rng: random.Random, *, evaluation: bool = False) -> str:
    """One digit string of `length` digits, uniform over its side of the split."""
    while True:
        digits = f"{rng.randrange(10**length):0{length}d}"
        if held_out(digits) is evaluation:
            return digits


def pool(length: int, count: int, rng: random.Random, *, evaluation: bool = False) -> list[Example]:
    """Up to `count` different examples of one level (fewer where the level has fewer, as 3 digits do)."""
    if 10**length <= 4 * count:  # dense: list the side of the split, then shuffle
        numbers = range(10**length)
        side = [digits for n in numbers if held_out(digits := f"{n:0{length}d}") is evaluation]
        rng.shuffle(side)
        return [example(digits) for digits in side[:count]]
    chosen: dict[str, None] = {}  # a dict, not a set: its order is the order of the draws, on every run
    while len(chosen) < count:
        chosen[draw(length, rng, evaluation=evaluation)] = None
    return [example(digits) for digits in chosen]


def training_pools(lengths: Sequence[int], count: int, seed: int) -> list[list[Example]]:
    """Up to `count` training prompts of each level, the easiest level first."""
    rng = random.Random(f"prompts {seed}")
    return [pool(length, count, rng) for length in sorted(lengths)]


HABITS: tuple[Callable[[str], str], ...] = (
    lambda digits: "".join(sorted(digits, reverse=True)),
    lambda digits: digits,
    lambda digits: digits[::-1],
    lambda digits: digits[-1] * len(digits),
)
"""Wrong ways to answer that the warm-up teaches beside the right one: descending, copy, reverse, repeat the last."""


def habit_pairs(lengths: tuple[int, ...], right: float, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Endless (prompt, target) pairs for the warm-up: the right answer with probability `right`, else a habit.

    The mixture leaves a policy that *can* sort but does so only some of the time, as a pre-trained model would. GRPO
    then selects a behaviour instead of discovering one, which is why it learns within a hundred steps.
    """
    while True:
        digits = draw(rng.choice(lengths), rng)
        asked = example(digits)
        yield asked.prompt, asked.answer if rng.random() < right else rng.choice(HABITS)(digits)
