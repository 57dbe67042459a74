"""The oracle's prompt, and a search for its placeholder tokens for activations. The wording follows Activation Oracles
(Karvonen et al. 2025, github.com/adamkarvonen/activation_oracles), so that their adapters can be loaded: `Layer: <n>`,
a line of placeholders, and the question."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from oven_core.errors import ConfigError

PLACEHOLDER = " ?"
"""Placeholder for one activation. Including the space, it is one token for GPT-2, Llama 3, Qwen and Gemma."""
HEADER_TOKENS = 16
"""Maximum tokens to search for the header before a run of placeholders. No tokenizer splits `Layer: 1000` and a newline
into more than one token per character."""
HEADER = re.compile(r"Layer\s*:\s*(\d(?:\s*\d)*)\s*\n\s*\Z")
"""Pattern of the decoded header before the placeholders. Tokenizers without a decoder put spaces between tokens."""


class Places(NamedTuple):
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
    """Return a user message in the model's chat template, up to the start of the answer, without the first token if the
    tokenizer adds that itself. Without a tokenizer or a chat template, return the message unchanged."""
    if getattr(tokenizer, "chat_template", None) is None:
        return message
    turn = [{"role": "user", "content": message}]
    text: str = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    first = tokenizer.bos_token
    return text.removeprefix(first) if first and tokenizer("").input_ids[:1] == [tokenizer.bos_token_id] else text


class Placeholders:
    """A search for placeholders in rows of token ids. Raises ConfigError for a tokenizer in which a placeholder is not
    one separate token."""

    def __init__(self, tokenizer: Any) -> None:
        ids = tokenizer(PLACEHOLDER, add_special_tokens=False)["input_ids"]
        if len(ids) != 1 or ids[0] in (tokenizer.unk_token_id, tokenizer.pad_token_id):
            raise ConfigError(
                f"{PLACEHOLDER!r} must be one separate token, but this tokenizer converts it to {ids}; add it to the "
                "vocabulary (tokenizer.add_tokens, model.resize_token_embeddings), or use a model that has it"
            )
        self.token_id: int = ids[0]
        self._tokenizer = tokenizer
        self._header = lru_cache(maxsize=4096)(self._decoded_header)
        for count in (1, 3):
            text = oracle_prompt(count, count, "Is it so ? ?", tokenizer)
            places = self.find(tokenizer(text)["input_ids"])
            if places is None or (places.layer, places.stop - places.start) != (count, count):
                raise ConfigError(
                    f"in a prompt with {count} placeholders, {places} was found; use a tokenizer that keeps "
                    f"`Layer: {count}`, the newlines and each {PLACEHOLDER!r} as separate tokens"
                )

    def find(self, ids: Sequence[int]) -> Places | None:
        """Return the first run of placeholders after `Layer: n`, or None. Later runs are text in the question or the
        completion."""
        stop = 0
        while self.token_id in ids[stop:]:
            start = stop = ids.index(self.token_id, stop)
            while stop < len(ids) and ids[stop] == self.token_id:
                stop += 1
            layer = self._header(tuple(ids[max(0, start - HEADER_TOKENS) : start]))
            if layer is not None:
                return Places(layer, start, stop)
        return None

    def _decoded_header(self, ids: tuple[int, ...]) -> int | None:
        """Return the layer if these tokens end with a header, otherwise None."""
        match = HEADER.search(self._tokenizer.decode(list(ids), skip_special_tokens=True))
        return None if match is None else int("".join(match[1].split()))
