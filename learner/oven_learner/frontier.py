"""Measure how far a policy has moved from a frontier model's answers, on a fixed set of texts that it never trains on.

The policy is teacher-forced over the answers, which gives bits per byte, and a lower bound on the KL divergence of the
two models although their tokenizers differ. Where both tokenizers end a token, each model predicts how the text
continues. The first byte of the continuation is a function of the text. So the divergence of the two byte
distributions is at most that of the texts (data processing; Cover & Thomas 2006, theorem 2.8.1). The policy's byte
distribution is exact: its next-token probabilities, summed by first byte. For the frontier model only the most likely
tokens are known. The rest of its mass, the tail, may start with any byte. The bound distributes the tail so that the
divergence is minimal, which makes it valid for every tail. With t the known mass, p the policy's and ε the tail, the
minimum of KL(t + δ ‖ p) over δ ≥ 0, Σδ = ε fills up t/p from its lowest entry to a common level λ:

    Σ max(0, λ p − t) = ε,    δ = max(0, λ p − t)

An end token has no text and is a 257th symbol.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from transformers.convert_slow_tokenizer import bytes_to_unicode

from oven_core.errors import ConfigError
from oven_learner.random_state import preserved_state
from oven_runs.home.probe_set import Probe, ProbeSet

SYMBOLS = 257
END = 256
"""The symbol of tokens without text."""
LEAST = 1e-12
"""Minimum probability, so that the divergence stays finite for a policy that rules out a byte."""
PLACES = 64
"""Rows of logits converted to probabilities at a time. With 150,000 tokens they take 77 MB in float64."""


@dataclass(frozen=True)
class Reading:
    bits_per_byte: float
    kl: float | None
    """Lower bound in nats per position where both tokenizers end a token. None without the frontier model's
    alternatives."""
    places: int = 0


@dataclass(frozen=True)
class _Text:
    prompt: list[int]
    completion: list[int]
    size: int
    """Bytes of the completion."""
    places: list[int]
    """Completion tokens that start where both tokenizers end a token."""
    known: list[Tensor]
    """(SYMBOLS,) each: the frontier model's known mass at those positions."""


class PolicyReading:
    """The probes in a policy's tokens, tokenized once."""

    def __init__(self, probes: ProbeSet, model: Any, tokenizer: Any) -> None:
        """Raises ConfigError for a tokenizer without token offsets, and if the policy can read none of the answers."""
        self._tokenizer = getattr(tokenizer, "tokenizer", tokenizer)  # a processor contains one
        if not getattr(self._tokenizer, "is_fast", False):
            raise ConfigError(
                f"a {type(tokenizer).__name__} cannot read the frontier's answers, because it has no token offsets; "
                "use a fast tokenizer, AutoTokenizer.from_pretrained(…)"
            )
        config = model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
        self._context = int(getattr(config, "max_position_embeddings", 0) or 1 << 20)
        self._special = {*self._tokenizer.all_special_ids, self._tokenizer.unk_token_id}
        self._first = FirstBytes(self._tokenizer, int(config.vocab_size))
        self._texts = [text for probe in probes.probes if (text := self._tokenized(probe)) is not None]
        self.left_out = len(probes.probes) - len(self._texts)
        """Number of answers that the policy cannot read: unknown or special tokens, or too long a prompt."""
        if not self._texts:
            raise ConfigError(
                f"the policy can read none of the {len(probes.probes)} answers of the frontier model: its tokenizer "
                f"does not know their symbols, or they are longer than its {self._context} positions"
            )

    @torch.no_grad()
    def read(self, model: Any) -> Reading:
        """Measure the model. Its weights and modes and the random generators are unchanged afterwards."""
        bits, size, divergence, places = 0.0, 0, 0.0, 0
        with preserved_state(model):
            model.eval()
            for text in self._texts:
                logits = _logits(model, text)  # (C, V), each row predicting its token
                completion = torch.tensor(text.completion, device=logits.device)
                for start in range(0, len(completion), PLACES):
                    part, rows = completion[start : start + PLACES], logits[start : start + PLACES]
                    chosen = rows.float().log_softmax(-1).gather(-1, part.unsqueeze(-1))
                    bits -= float(chosen.double().sum()) / math.log(2)
                for start in range(0, len(text.places), PLACES):
                    known, rows = text.known[start : start + PLACES], logits[text.places[start : start + PLACES]]
                    divergence += float(least_divergence(torch.stack(known), self._first(rows).cpu()).sum())
                size, places = size + text.size, places + len(text.places)
        return Reading(bits / size, divergence / places if places else None, places)

    def _tokenized(self, probe: Probe) -> _Text | None:
        prompt = self._prompt(probe.prompt)
        encoded = self._tokenizer(probe.completion, add_special_tokens=False, return_offsets_mapping=True)
        space = self._context - len(prompt)
        ids, spans = list(encoded["input_ids"])[:space], encoded["offset_mapping"][:space]
        if not prompt or space <= 0 or not ids or not self._special.isdisjoint(ids):
            return None
        offsets = [0, *accumulate(len(character.encode()) for character in probe.completion)]  # in UTF-8
        size = offsets[spans[-1][1]]
        aligned = self._aligned(probe, ids, spans, offsets)
        return _Text(prompt, ids, size, list(aligned), list(aligned.values())) if size else None

    def _prompt(self, prompt: str) -> list[int]:
        """Return the prompt's tokens, with the policy's chat template if it has one."""
        if getattr(self._tokenizer, "chat_template", None):
            messages = [{"role": "user", "content": prompt}]
            text = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        return list(self._tokenizer(prompt)["input_ids"])

    def _aligned(
        self, probe: Probe, ids: Sequence[int], spans: Sequence[tuple[int, int]], offsets: Sequence[int]
    ) -> dict[int, Tensor]:
        """Return the policy's tokens that start where the frontier model also ends a token, and its known mass
        there."""
        whole, theirs, position = probe.completion.encode(), {}, 0
        for token in probe.tokens:
            theirs[position] = token
            position += len(token.hex) // 2
        if b"".join(bytes.fromhex(token.hex) for token in probe.tokens) != whole:
            return {}
        aligned, end = {}, 0
        for number, (token, (start, stop)) in enumerate(
            zip(self._tokenizer.convert_ids_to_tokens(list(ids)), spans, strict=True)
        ):
            begins, text = offsets[end], token_bytes(self._tokenizer, token)
            # not inside a character, and the token starts with the next byte
            if start >= end and begins in theirs and text[:1] == whole[begins : begins + 1]:
                top = theirs[begins].top
                aligned[number] = known_mass(
                    [(bytes.fromhex(candidate.hex), math.exp(candidate.logprob)) for candidate in top]
                )
            end = max(end, stop)
        return aligned


class FirstBytes:
    """A tokenizer's tokens grouped by the first byte of their text."""

    def __init__(self, tokenizer: Any, rows: int) -> None:
        """`rows`: number of logits, at least the number of tokens."""
        special = set(tokenizer.all_special_ids)
        first_bytes = [END] * rows
        for token, number in tokenizer.get_vocab().items():
            if number < rows and number not in special:
                text = token_bytes(tokenizer, token)
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
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if "ByteLevel" in repr(getattr(backend, "decoder", None)):
        return bytes(_bytes_by_letter()[letter] for letter in token if letter in _bytes_by_letter())
    return token.replace("▁", " ").encode()


@cache
def _bytes_by_letter() -> dict[str, int]:
    return {letter: byte for byte, letter in bytes_to_unicode().items()}  # type: ignore[no-untyped-call]


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


def _logits(model: Any, text: _Text) -> Tensor:
    device = next(model.parameters()).device
    ids = torch.tensor([[*text.prompt, *text.completion]], device=device)  # (1, P + C)
    logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits
    rows: Tensor = logits[0, -len(text.completion) - 1 : -1]
    return rows
