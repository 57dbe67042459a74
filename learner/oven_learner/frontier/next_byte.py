"""A lower bound on the KL divergence of two models with different tokenizers, from one model's most likely tokens.

Where both tokenizers end a token, each model says how the text continues. The first byte of what comes next is a
function of the text, so the divergence of the two distributions of that byte is at most that of the texts (data
processing; Cover & Thomas 2006, theorem 2.8.1). The policy's is exact: its next-token probabilities, summed by the
token's first byte. Of the frontier model's only the most likely tokens are known, and the rest of its mass, the tail,
may begin with any byte. It is given to those where it makes the divergence least, which bounds it from below whatever
the tail is. With t the mass that is known, p the policy's and ε the tail, the least of KL(t + δ ‖ p) over δ ≥ 0, Σδ = ε
fills up t/p from its lowest place to a common level λ:

    Σ max(0, λ p − t) = ε,    δ = max(0, λ p − t)

An end mark, which has no text, is a 257th symbol.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

SYMBOLS = 257
END = 256
"""The symbol of what has no text."""
LEAST = 1e-12
"""A probability below it counts as this: a policy that rules a byte out is far away, and not infinitely far."""


class FirstBytes:
    """A tokenizer's tokens by the first byte of their text."""

    def __init__(self, tokenizer: Any, rows: int) -> None:
        """`rows`: logits that the model has for a token, at least as many as there are tokens."""
        inside = getattr(tokenizer, "tokenizer", tokenizer)  # a processor holds one
        special = set(inside.all_special_ids)
        place = [END] * rows
        for token, number in inside.get_vocab().items():
            if number < rows and number not in special:
                spelt = token_bytes(inside, token)
                place[number] = spelt[0] if spelt else END
        self._place = torch.tensor(place)

    def __call__(self, logits: Tensor) -> Tensor:
        """(N, V) logits → (N, SYMBOLS) probabilities, float64."""
        odds = logits.double().softmax(-1)
        found = torch.zeros(len(logits), SYMBOLS, dtype=torch.float64, device=logits.device)
        return found.index_add_(1, self._place.to(logits.device), odds)


def token_bytes(tokenizer: Any, token: str) -> bytes:
    """What a token of the vocabulary adds to a text. Byte-level tokens are spelt with one character a byte (GPT-2's
    `bytes_to_unicode`), others with ▁ for a space and <0x0A> for a byte."""
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes([int(token[3:5], 16)])
    if byte_level(tokenizer):
        return bytes(_BYTES[letter] for letter in token if letter in _BYTES)
    return token.replace("▁", " ").encode()


def byte_level(tokenizer: Any) -> bool:
    """Whether a tokenizer spells bytes by characters: only then is a space spelt Ġ."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return "ByteLevel" in repr(getattr(backend, "decoder", None))


def known_mass(alternatives: Sequence[tuple[bytes, float]]) -> Tensor:
    """(SYMBOLS,) of the most likely tokens' probabilities by their first byte; `alternatives` are bytes and
    probability. Of mass beyond 1, which rounding and some servers give, each gets its share."""
    found = torch.zeros(SYMBOLS, dtype=torch.float64)
    for spelt, odds in alternatives:
        found[spelt[0] if spelt else END] += odds
    return found / max(1.0, float(found.sum()))


def least_divergence(known: Tensor, policy: Tensor) -> Tensor:
    """The bound in nats at each of N places, from (N, SYMBOLS) of what is known of the frontier model and of the
    policy."""
    policy = policy.clamp(min=LEAST)
    policy = policy / policy.sum(-1, keepdim=True)
    tail = (1 - known.sum(-1, keepdim=True)).clamp(min=0)  # (N, 1)
    order = (known / policy).argsort(-1)
    masses, odds = known.gather(-1, order).cumsum(-1), policy.gather(-1, order).cumsum(-1)
    # With the lowest k symbols at the common level it is (ε + their mass) / their p; the right k is the one whose level
    # reaches no further symbol. Levels first fall and then rise with k, and the right one is the least.
    level = ((tail + masses) / odds).min(-1, keepdim=True).values  # (N, 1)
    whole = torch.maximum(known, level * policy)
    whole = whole / whole.sum(-1, keepdim=True)
    terms = torch.where(whole > 0, whole * (whole.clamp(min=LEAST).log() - policy.log()), torch.zeros_like(whole))
    return terms.sum(-1).clamp(min=0)


def _bytes_by_letter() -> dict[str, int]:
    kept = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in kept]
    return {chr(byte): byte for byte in kept} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTES = _bytes_by_letter()
