"""Teacher-force a policy on a frontier model's answers: bits per byte, and a lower bound on the divergence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from oven_core.errors import ConfigError
from oven_learner.frontier.next_byte import FirstBytes, known_mass, least_divergence, token_bytes
from oven_learner.random_state import undisturbed
from oven_runs.home.probe_set import Probe, ProbeSet

PLACES = 64
"""Rows of logits converted to probabilities at a time. With 150,000 tokens they take 77 MB in float64."""


@dataclass(frozen=True)
class Reading:
    """The result over all probes."""

    bits_per_byte: float
    kl: float | None
    """Lower bound in nats per position where both tokenizers end a token. None without the frontier model's
    alternatives."""
    places: int = 0


@dataclass(frozen=True)
class _Text:
    """One answer in the policy's tokens."""

    prompt: list[int]
    completion: list[int]
    size: int
    """Bytes of the completion."""
    places: tuple[int, ...]
    """Completion tokens that start where both tokenizers end a token."""
    known: Tensor | None
    """(places, SYMBOLS): the frontier model's known mass at those positions."""


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
        self._texts = [text for probe in probes.probes if (text := self._cut(probe)) is not None]
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
        with undisturbed(model):
            model.eval()
            for text in self._texts:
                logits = self._logits(model, text)  # (C, V), each row predicting its token
                completion = torch.tensor(text.completion, device=logits.device)
                for start in range(0, len(completion), PLACES):
                    part, rows = completion[start : start + PLACES], logits[start : start + PLACES]
                    chosen = rows.float().log_softmax(-1).gather(-1, part.unsqueeze(-1))
                    bits -= float(chosen.double().sum()) / math.log(2)
                size += text.size
                for known, rows in self._at_places(text, logits):
                    divergence += float(least_divergence(known, self._first(rows).cpu()).sum())
                places += len(text.places)
        return Reading(bits / size, divergence / places if places else None, places)

    def _logits(self, model: Any, text: _Text) -> Tensor:
        device = next(model.parameters()).device
        ids = torch.tensor([[*text.prompt, *text.completion]], device=device)  # (1, P + C)
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits
        last = len(text.completion) + 1
        rows: Tensor = logits[0, -last:-1]
        return rows

    @staticmethod
    def _at_places(text: _Text, logits: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        if text.known is None:
            return
        for start in range(0, len(text.places), PLACES):
            yield text.known[start : start + PLACES], logits[list(text.places[start : start + PLACES])]

    def _cut(self, probe: Probe) -> _Text | None:
        prompt = self._prompt(probe.prompt)
        encoded = self._tokenizer(probe.completion, add_special_tokens=False, return_offsets_mapping=True)
        space = self._context - len(prompt)
        ids, spans = list(encoded["input_ids"])[:space], encoded["offset_mapping"][:space]
        if not prompt or space <= 0 or not ids or not self._special.isdisjoint(ids):
            return None
        offsets = _byte_offsets(probe.completion)
        size = offsets[spans[-1][1]]
        places, known = self._aligned(probe, ids, spans, offsets) if probe.tokens and size else ((), None)
        return _Text(prompt, ids, size, places, known) if size else None

    def _prompt(self, prompt: str) -> list[int]:
        """Return the prompt's tokens, with the policy's chat template if it has one."""
        if getattr(self._tokenizer, "chat_template", None):
            messages = [{"role": "user", "content": prompt}]
            text = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        return list(self._tokenizer(prompt)["input_ids"])

    def _aligned(
        self, probe: Probe, ids: Sequence[int], spans: Sequence[tuple[int, int]], offsets: Sequence[int]
    ) -> tuple[tuple[int, ...], Tensor | None]:
        """Return the policy's tokens that start where the frontier model also ends a token, and its known mass
        there."""
        whole, theirs, position = probe.completion.encode(), {}, 0
        for token in probe.tokens:
            theirs[position] = token
            position += len(token.hex) // 2
        if b"".join(bytes.fromhex(token.hex) for token in probe.tokens) != whole:
            return (), None
        spelt = self._tokenizer.convert_ids_to_tokens(list(ids))
        places, rows, end = [], [], 0
        for number, (start, stop) in enumerate(spans):
            begins, text = offsets[end], token_bytes(self._tokenizer, spelt[number])
            clean = start >= end and begins in theirs and text[:1] == whole[begins : begins + 1]
            if clean:  # not inside a character, and the token starts with the next byte
                top = [
                    (bytes.fromhex(alternative.hex), math.exp(alternative.logprob))
                    for alternative in theirs[begins].top
                ]
                places.append(number)
                rows.append(known_mass(top))
            end = max(end, stop)
        return tuple(places), torch.stack(rows) if rows else None


def _byte_offsets(text: str) -> list[int]:
    """Return the start of each character in UTF-8, and the end of the last one."""
    offsets = [0]
    for character in text:
        offsets.append(offsets[-1] + len(character.encode()))
    return offsets
