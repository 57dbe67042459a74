"""A lower bound on the KL divergence of two models with different tokenizers, from one model's most likely tokens.

Where both tokenizers end a token, each model predicts how the text continues. The first byte of the continuation is a
function of the text. So the divergence of the two byte distributions is at most that of the texts (data processing;
Cover & Thomas 2006, theorem 2.8.1). The policy's byte distribution is exact: its next-token probabilities, summed by
first byte. For the frontier model only the most likely tokens are known. The rest of its mass, the tail, may start with
any byte. The bound distributes the tail so that the divergence is minimal, which makes it valid for every tail. With t
the known mass, p the policy's and ε the tail, the minimum of KL(t + δ ‖ p) over δ ≥ 0, Σδ = ε fills up t/p from its
lowest entry to a common level λ:

    Σ max(0, λ p − t) = ε,    δ = max(0, λ p − t)

An end token has no text and is a 257th symbol.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

SYMBOLS = 257
END = 256
"""The symbol of tokens without text."""
LEAST = 1e-12
"""Probabilities are at least this: a policy that rules a byte out is far away, but not infinitely far."""


class FirstBytes:
    """A tokenizer's tokens grouped by the first byte of their text."""

    def __init__(self, tokenizer: Any, rows: int) -> None:
        """`rows`: number of logits, at least the number of tokens."""
        inside = getattr(tokenizer, "tokenizer", tokenizer)  # a processor contains one
        special = set(inside.all_special_ids)
        first_bytes = [END] * rows
        for token, number in inside.get_vocab().items():
            if number < rows and number not in special:
                text = token_bytes(inside, token)
                first_bytes[number] = text[0] if text else END
        self._first_bytes = torch.tensor(first_bytes)

    def __call__(self, logits: Tensor) -> Tensor:
        """Turn (N, V) logits into (N, SYMBOLS) probabilities, float64."""
        odds = logits.double().softmax(-1)
        masses = torch.zeros(len(logits), SYMBOLS, dtype=torch.float64, device=logits.device)
        return masses.index_add_(1, self._first_bytes.to(logits.device), odds)


def token_bytes(tokenizer: Any, token: str) -> bytes:
    """Return the bytes that a token of the vocabulary adds to a text.

    Byte-level tokens have one character per byte (GPT-2's `bytes_to_unicode`). Others have ▁ for a space and <0x0A> for
    a byte.
    """
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes([int(token[3:5], 16)])
    if byte_level(tokenizer):
        return bytes(_BYTES[letter] for letter in token if letter in _BYTES)
    return token.replace("▁", " ").encode()


def byte_level(tokenizer: Any) -> bool:
    """Whether a tokenizer represents bytes by characters. Only then is a space written Ġ."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return "ByteLevel" in repr(getattr(backend, "decoder", None))


def known_mass(alternatives: Sequence[tuple[bytes, float]]) -> Tensor:
    """Return (SYMBOLS,): the most likely tokens' probabilities by first byte, from (bytes, probability) pairs.

    Rounding and some servers yield a total above 1, which is scaled down to 1.
    """
    masses = torch.zeros(SYMBOLS, dtype=torch.float64)
    for text, odds in alternatives:
        masses[text[0] if text else END] += odds
    return masses / max(1.0, float(masses.sum()))


def least_divergence(known: Tensor, policy: Tensor) -> Tensor:
    """Return the bound in nats at each of N positions. Both inputs are (N, SYMBOLS): the frontier model's known mass
    and the policy's probabilities."""
    policy = policy.clamp(min=LEAST)
    policy = policy / policy.sum(-1, keepdim=True)
    tail = (1 - known.sum(-1, keepdim=True)).clamp(min=0)  # (N, 1)
    order = (known / policy).argsort(-1)
    masses, odds = known.gather(-1, order).cumsum(-1), policy.gather(-1, order).cumsum(-1)
    # With the lowest k symbols at the common level, the level is (ε + their mass) / their p. The right k is the one
    # whose level reaches no further symbol. Levels first fall and then rise with k, so the right level is the minimum.
    level = ((tail + masses) / odds).min(-1, keepdim=True).values  # (N, 1)
    whole = torch.maximum(known, level * policy)
    whole = whole / whole.sum(-1, keepdim=True)
    terms = torch.where(whole > 0, whole * (whole.clamp(min=LEAST).log() - policy.log()), torch.zeros_like(whole))
    return terms.sum(-1).clamp(min=0)


def _bytes_by_letter() -> dict[str, int]:
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTES = _bytes_by_letter()
