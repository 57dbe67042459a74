"""Builds the oracle's prompt, and finds its placeholder tokens for activations. A prompt consists of `Layer: <n>`, a
line of placeholders, and the question. The wording is that of Activation Oracles (Karvonen et al. 2025,
github.com/adamkarvonen/activation_oracles), so that their adapters can be used."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from oven_core.errors import ConfigError

PLACEHOLDER = " ?"
"""Placeholder for one activation. GPT-2, Llama 3, Qwen and Gemma encode it as one token, including the space."""
MAX_HEADER_TOKENS = 16
"""Number of tokens before the placeholders in which to look for the header. A long header, `Layer: 1000` and a newline,
has 12 characters, and a token has at least one character."""
HEADER_PATTERN = re.compile(r"Layer\s*:\s*(\d(?:\s*\d)*)\s*\n\s*\Z")
"""Pattern of the decoded header. Its spaces are optional, because some tokenizers decode with spaces between tokens."""


class PlaceholderSpan(NamedTuple):
    """The positions of a row's placeholders, `start` to `stop` - 1, and the layer in its header."""

    layer: int
    start: int
    stop: int


def oracle_prompt(layer: int, count: int, question: str, tokenizer: Any = None) -> str:
    """Return the oracle's prompt for `count` activations of block `layer`, as one chat turn if `tokenizer` has a chat
    template. Raises ConfigError for an empty question, a negative layer, and fewer than one activation."""
    if not question.strip():
        raise ConfigError("the oracle's question is empty; ask something about the activations")
    if layer < 0:
        raise ConfigError(f"layer {layer} is invalid; blocks are counted from 0; see layer_at(model, percent)")
    if count < 1:
        raise ConfigError(f"{count} activations are too few; an oracle needs at least 1")
    return chat_text(tokenizer, f"Layer: {layer}\n{PLACEHOLDER * count} \n{question}")


def chat_text(tokenizer: Any, message: str) -> str:
    """Return a user message in the model's chat template, up to the start of the answer. If the tokenizer itself adds a
    first token, the text does not contain it. Without a chat template, the message is returned unchanged."""
    if getattr(tokenizer, "chat_template", None) is None:
        return message
    turn = [{"role": "user", "content": message}]
    text: str = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    adds_bos = tokenizer.bos_token and tokenizer("").input_ids[:1] == [tokenizer.bos_token_id]
    return text.removeprefix(tokenizer.bos_token) if adds_bos else text


class Placeholders:
    """Finds placeholders in rows of token ids. Raises ConfigError for a tokenizer that does not encode each placeholder
    as one separate token."""

    def __init__(self, tokenizer: Any) -> None:
        ids = tokenizer(PLACEHOLDER, add_special_tokens=False)["input_ids"]
        if len(ids) != 1 or ids[0] in (tokenizer.unk_token_id, tokenizer.pad_token_id):
            raise ConfigError(
                f"{PLACEHOLDER!r} must be one separate token, but this tokenizer converts it to {ids}; add it to the "
                "vocabulary (tokenizer.add_tokens, model.resize_token_embeddings), or use a model that has it"
            )
        self.token_id: int = ids[0]
        self._tokenizer = tokenizer
        self._cached_layer = lru_cache(maxsize=4096)(self._layer_in_header)
        for count in (1, 3):  # test with `count` placeholders for layer `count`
            text = oracle_prompt(count, count, "Is it so ? ?", tokenizer)
            span = self.find(tokenizer(text)["input_ids"])
            if span is None or (span.layer, span.stop - span.start) != (count, count):
                raise ConfigError(
                    f"in a prompt with {count} placeholders, {span} was found; use a tokenizer that keeps "
                    f"`Layer: {count}`, the newlines and each {PLACEHOLDER!r} as separate tokens"
                )

    def find(self, ids: Sequence[int]) -> PlaceholderSpan | None:
        """Return the first span of placeholders after `Layer: n`, or None. Later placeholders are text in the question
        or the completion."""
        stop = 0
        while self.token_id in ids[stop:]:
            start = stop = ids.index(self.token_id, stop)
            while stop < len(ids) and ids[stop] == self.token_id:
                stop += 1
            layer = self._cached_layer(tuple(ids[max(0, start - MAX_HEADER_TOKENS) : start]))
            if layer is not None:
                return PlaceholderSpan(layer, start, stop)
        return None

    def _layer_in_header(self, ids: tuple[int, ...]) -> int | None:
        """Return the layer if these tokens end with a header, otherwise None."""
        match = HEADER_PATTERN.search(self._tokenizer.decode(list(ids), skip_special_tokens=True))
        return None if match is None else int("".join(match[1].split()))
