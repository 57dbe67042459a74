"""Measures how far a policy has moved away from a frontier model's answers, on text that it never trains on.

The policy is teacher-forced over the answers. This gives bits per byte, and a lower bound on the KL divergence of the
two models, although their tokenizers differ. The models are compared at shared positions, where both tokenizers end a
token and each model predicts how the text continues.

- The first byte of the continuation is a function of the text. Therefore the divergence of the two byte distributions
  is at most the divergence of the text distributions (data processing inequality; Cover & Thomas 2006, theorem 2.8.1).
- The policy's byte distribution is exact. All its next-token probabilities are known, and are summed by first byte.
- For the frontier model, only the probabilities of the most likely tokens are known. The rest of its mass, the tail,
  may start with any byte. The bound distributes the tail so that the divergence is minimal.

Let t be the frontier model's known mass of each byte, p the policy's mass and ε the tail. The minimum of KL(t + δ ‖ p)
over δ ≥ 0 with Σδ = ε raises the lowest entries of t/p to a common level λ:

    Σ max(0, λ p − t) = ε,    δ = max(0, λ p − t)

An end token has no text, so it counts as a 257th symbol.
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
from oven_learner.random_state import preserve_state
from oven_runs.home.probe_set import Probe, ProbeSet

SYMBOLS = 257
"""Number of symbols: 256 bytes and END."""
END = 256
"""The symbol of tokens without text."""
MIN_PROBABILITY = 1e-12
"""Minimum probability, so that the divergence stays finite if the policy gives a byte no probability."""
CHUNK_ROWS = 64
"""Number of rows of logits converted to probabilities at a time. With 150,000 tokens they take 77 MB in float64."""


@dataclass(frozen=True)
class Reading:
    """One measurement of a policy."""

    bits_per_byte: float
    kl: float | None
    """Lower bound in nats per shared position, where both tokenizers end a token. None without shared positions."""
    positions: int = 0
    """Number of shared positions."""


@dataclass(frozen=True)
class _TokenizedProbe:
    """A prompt and the frontier model's answer, in the policy's tokens."""

    prompt: list[int]
    completion: list[int]
    byte_count: int
    """Number of bytes of the completion."""
    positions: list[int]
    """Indices of the completion tokens that start at a shared position."""
    known_masses: list[Tensor]
    """The frontier model's known mass at those positions, (SYMBOLS,) each."""


class PolicyMeter:
    """Measures a policy on the frontier model's answers, which are tokenized with the policy's tokenizer."""

    def __init__(self, probes: ProbeSet, model: Any, tokenizer: Any) -> None:
        """Tokenize the probes. Raises ConfigError without token offsets, or if the policy cannot read any answer."""
        self._tokenizer = getattr(tokenizer, "tokenizer", tokenizer)  # a processor contains one
        if not getattr(self._tokenizer, "is_fast", False):
            raise ConfigError(
                f"a {type(tokenizer).__name__} cannot read the frontier model's answers, because it has no token "
                "offsets; use a fast tokenizer, AutoTokenizer.from_pretrained(…)"
            )
        config = model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
        self._context = int(getattr(config, "max_position_embeddings", 0) or 1 << 20)  # by default, no practical limit
        self._special_ids = {*self._tokenizer.all_special_ids, self._tokenizer.unk_token_id}
        self._first_bytes = FirstBytes(self._tokenizer, int(config.vocab_size))
        self._probes = [tokenized for probe in probes.probes if (tokenized := self._tokenize(probe)) is not None]
        self.skipped_count = len(probes.probes) - len(self._probes)
        """Number of answers that the policy cannot read, because of unknown or special tokens or a long prompt."""
        if not self._probes:
            raise ConfigError(
                f"the policy cannot read any of the frontier model's {len(probes.probes)} answers: its tokenizer does "
                f"not know their symbols, or their prompts are longer than its {self._context} positions"
            )

    @torch.no_grad()
    def read(self, model: Any) -> Reading:
        """Measure the model. Its weights, its modes and the random generators do not change."""
        bits, byte_count, divergence, position_count = 0.0, 0, 0.0, 0
        with preserve_state(model):
            model.eval()
            for probe in self._probes:
                logits = _compute_logits(model, probe)  # (C, V), where row i predicts completion token i
                completion = torch.tensor(probe.completion, device=logits.device)
                for start in range(0, len(completion), CHUNK_ROWS):
                    chunk = slice(start, start + CHUNK_ROWS)
                    log_probs = logits[chunk].float().log_softmax(-1).gather(-1, completion[chunk].unsqueeze(-1))
                    bits -= float(log_probs.double().sum()) / math.log(2)
                for start in range(0, len(probe.positions), CHUNK_ROWS):
                    chunk = slice(start, start + CHUNK_ROWS)
                    policy = self._first_bytes(logits[probe.positions[chunk]]).cpu()
                    divergence += float(min_divergence(torch.stack(probe.known_masses[chunk]), policy).sum())
                byte_count += probe.byte_count
                position_count += len(probe.positions)
        kl = divergence / position_count if position_count else None
        return Reading(bits / byte_count, kl, position_count)

    def _tokenize(self, probe: Probe) -> _TokenizedProbe | None:
        """Return the probe in the policy's tokens, or None if the policy cannot read it."""
        prompt = self._tokenize_prompt(probe.prompt)
        encoded = self._tokenizer(probe.completion, add_special_tokens=False, return_offsets_mapping=True)
        space = self._context - len(prompt)
        ids, spans = list(encoded["input_ids"])[:space], encoded["offset_mapping"][:space]
        if not prompt or space <= 0 or not ids or not self._special_ids.isdisjoint(ids):
            return None
        offsets = [0, *accumulate(len(character.encode()) for character in probe.completion)]  # in bytes of UTF-8
        _, last_character = spans[-1]
        byte_count = offsets[last_character]
        masses = self._masses_at_shared_positions(probe, ids, spans, offsets)
        return _TokenizedProbe(prompt, ids, byte_count, list(masses), list(masses.values())) if byte_count else None

    def _tokenize_prompt(self, prompt: str) -> list[int]:
        """Return the prompt's tokens, with the policy's chat template if it has one."""
        if getattr(self._tokenizer, "chat_template", None):
            messages = [{"role": "user", "content": prompt}]
            text = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        return list(self._tokenizer(prompt)["input_ids"])

    def _masses_at_shared_positions(
        self, probe: Probe, ids: Sequence[int], spans: Sequence[tuple[int, int]], offsets: Sequence[int]
    ) -> dict[int, Tensor]:
        """Map the index of each token that starts at a shared position to the frontier model's known mass there.
        `spans` are the tokens' ranges of characters. `offsets` are the numbers of bytes before each character."""
        completion = probe.completion.encode()
        frontier_tokens, position = {}, 0  # byte position → token that starts there
        for token in probe.tokens:
            frontier_tokens[position] = token
            position += len(token.hex) // 2
        if b"".join(bytes.fromhex(token.hex) for token in probe.tokens) != completion:
            return {}
        masses, characters_read = {}, 0
        tokens = self._tokenizer.convert_ids_to_tokens(list(ids))
        for index, (token, (start, stop)) in enumerate(zip(tokens, spans, strict=True)):
            position = offsets[characters_read]
            starts_here = token_bytes(self._tokenizer, token)[:1] == completion[position : position + 1]
            # A token with a smaller `start` begins inside a character.
            if start >= characters_read and position in frontier_tokens and starts_here:
                likely_tokens = frontier_tokens[position].top
                pairs = [(bytes.fromhex(likely.hex), math.exp(likely.logprob)) for likely in likely_tokens]
                masses[index] = known_mass(pairs)
            characters_read = max(characters_read, stop)
        return masses


class FirstBytes:
    """A tokenizer's tokens, grouped by the first byte of their text."""

    def __init__(self, tokenizer: Any, logit_count: int) -> None:
        """`logit_count` is the number of logits per position, which may differ from the number of tokens."""
        special_ids = set(tokenizer.all_special_ids)
        first_bytes = [END] * logit_count
        for token, token_id in tokenizer.get_vocab().items():
            if token_id < logit_count and token_id not in special_ids:
                text = token_bytes(tokenizer, token)
                first_bytes[token_id] = text[0] if text else END
        self._first_bytes = torch.tensor(first_bytes)

    def __call__(self, logits: Tensor) -> Tensor:
        """Convert (N, V) logits to (N, SYMBOLS) probabilities in float64."""
        probabilities = logits.double().softmax(-1)
        masses = torch.zeros(len(logits), SYMBOLS, dtype=torch.float64, device=logits.device)
        return masses.index_add_(1, self._first_bytes.to(logits.device), probabilities)


def token_bytes(tokenizer: Any, token: str) -> bytes:
    """Return the bytes that a token of the vocabulary adds to a string. Byte-level tokens have one character per byte
    (GPT-2's `bytes_to_unicode`). Other tokens use ▁ for a space and <0x0A> for a byte."""
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
    """Sum (bytes, probability) pairs of the most likely tokens by first byte. Return a tensor (SYMBOLS,). Because of
    rounding, or with some servers, the total can exceed 1. It is then scaled down to 1."""
    masses = torch.zeros(SYMBOLS, dtype=torch.float64)
    for text, probability in alternatives:
        masses[text[0] if text else END] += probability
    return masses / max(1.0, float(masses.sum()))


def min_divergence(known: Tensor, policy: Tensor) -> Tensor:
    """Return the lower bound in nats at each of N positions.

    Args:
        known: the frontier model's known mass, (N, SYMBOLS).
        policy: the policy's probabilities, (N, SYMBOLS).
    """
    policy = policy.clamp(min=MIN_PROBABILITY)
    policy = policy / policy.sum(-1, keepdim=True)
    tail = (1 - known.sum(-1, keepdim=True)).clamp(min=0)  # (N, 1)
    order = (known / policy).argsort(-1)
    known_sums, policy_sums = known.gather(-1, order).cumsum(-1), policy.gather(-1, order).cumsum(-1)
    # If the k symbols with the lowest t/p are raised, their common level is (ε + Σt) / Σp. The minimum over k is the
    # correct level, because levels fall with k until they no longer reach the next symbol, and then rise.
    level = ((tail + known_sums) / policy_sums).min(-1, keepdim=True).values  # (N, 1)
    frontier = torch.maximum(known, level * policy)
    frontier = frontier / frontier.sum(-1, keepdim=True)
    log_ratio = frontier.clamp(min=MIN_PROBABILITY).log() - policy.log()
    terms = torch.where(frontier > 0, frontier * log_ratio, torch.zeros_like(frontier))
    return terms.sum(-1).clamp(min=0)


def _compute_logits(model: Any, probe: _TokenizedProbe) -> Tensor:
    """Return the model's logits (C, V) for the tokens of the completion."""
    device = next(model.parameters()).device
    ids = torch.tensor([[*probe.prompt, *probe.completion]], device=device)  # (1, P + C)
    logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits
    rows: Tensor = logits[0, -len(probe.completion) - 1 : -1]
    return rows
