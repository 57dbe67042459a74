"""A policy teacher-forced over a frontier model's answers: bits per byte, and a bound on the divergence from it."""

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
"""Rows of logits that are turned into probabilities at a time: with 150,000 tokens they are 77 MB in float64."""


@dataclass(frozen=True)
class Reading:
    """Of all probes together."""

    bits_per_byte: float
    kl: float | None
    """Nats per place where both tokenizers end a token, at least; None without the frontier model's alternatives."""
    places: int = 0


@dataclass(frozen=True)
class _Text:
    """One answer as the policy reads it."""

    prompt: list[int]
    completion: list[int]
    size: int
    """Bytes of the completion."""
    places: tuple[int, ...]
    """Tokens of the completion before which both tokenizers end one."""
    known: Tensor | None
    """(places, SYMBOLS) of what the frontier model would have written there."""


class PolicyReading:
    """The probes, cut into a policy's tokens once."""

    def __init__(self, probes: ProbeSet, model: Any, tokenizer: Any) -> None:
        """Raises ConfigError for a tokenizer that does not say where its tokens lie in a text, and where the policy can
        read none of the answers."""
        self._tokenizer = getattr(tokenizer, "tokenizer", tokenizer)  # a processor holds one
        if not getattr(self._tokenizer, "is_fast", False):
            raise ConfigError(
                f"the frontier's answers cannot be read by a {type(tokenizer).__name__}, which does not say where its "
                "tokens lie in a text; give a fast tokenizer, AutoTokenizer.from_pretrained(…)"
            )
        config = model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
        self._room = int(getattr(config, "max_position_embeddings", 0) or 1 << 20)
        self._special = {*self._tokenizer.all_special_ids, self._tokenizer.unk_token_id}
        self._first = FirstBytes(self._tokenizer, int(config.vocab_size))
        self._texts = [text for probe in probes.probes if (text := self._cut(probe)) is not None]
        self.left_out = len(probes.probes) - len(self._texts)
        """Answers that the policy cannot read: an unknown symbol or mark, or a prompt as long as all it reads."""
        if not self._texts:
            raise ConfigError(
                f"the policy can read none of the {len(probes.probes)} answers of the frontier model: its tokenizer "
                f"does not know their symbols, or they are longer than its {self._room} positions"
            )

    @torch.no_grad()
    def read(self, model: Any) -> Reading:
        """The model's modes and the random generators are as before, and so are its weights."""
        bits, size, divergence, places = 0.0, 0, 0.0, 0
        with undisturbed(model):
            model.eval()
            for text in self._texts:
                logits = self._logits(model, text)  # (C, V), each row predicting its token
                wanted = torch.tensor(text.completion, device=logits.device)
                for at in range(0, len(wanted), PLACES):
                    part, rows = wanted[at : at + PLACES], logits[at : at + PLACES]
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
        found = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits
        last = len(text.completion) + 1
        rows: Tensor = found[0, -last:-1]
        return rows

    @staticmethod
    def _at_places(text: _Text, logits: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        if text.known is None:
            return
        for at in range(0, len(text.places), PLACES):
            yield text.known[at : at + PLACES], logits[list(text.places[at : at + PLACES])]

    def _cut(self, probe: Probe) -> _Text | None:
        prompt = self._prompt(probe.prompt)
        found = self._tokenizer(probe.completion, add_special_tokens=False, return_offsets_mapping=True)
        room = self._room - len(prompt)
        ids, spans = list(found["input_ids"])[:room], found["offset_mapping"][:room]
        if not prompt or room <= 0 or not ids or not self._special.isdisjoint(ids):
            return None
        at = _byte_offsets(probe.completion)
        size = at[spans[-1][1]]
        places, known = self._aligned(probe, ids, spans, at) if probe.tokens and size else ((), None)
        return _Text(prompt, ids, size, places, known) if size else None

    def _prompt(self, prompt: str) -> list[int]:
        """As the policy would be asked: by its own template for conversations, where it has one."""
        if getattr(self._tokenizer, "chat_template", None):
            said = [{"role": "user", "content": prompt}]
            text = self._tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
            return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        return list(self._tokenizer(prompt)["input_ids"])

    def _aligned(
        self, probe: Probe, ids: Sequence[int], spans: Sequence[tuple[int, int]], at: Sequence[int]
    ) -> tuple[tuple[int, ...], Tensor | None]:
        """Before which of the policy's tokens the frontier model ends one, too, and what that would have written."""
        whole, theirs, place = probe.completion.encode(), {}, 0
        for token in probe.tokens:
            theirs[place] = token
            place += len(token.hex) // 2
        if b"".join(bytes.fromhex(token.hex) for token in probe.tokens) != whole:
            return (), None
        spelt = self._tokenizer.convert_ids_to_tokens(list(ids))
        places, rows, end = [], [], 0
        for number, (start, stop) in enumerate(spans):
            begins, text = at[end], token_bytes(self._tokenizer, spelt[number])
            clean = start >= end and begins in theirs and text[:1] == whole[begins : begins + 1]
            if clean:  # not inside a character, and the token begins with the byte that comes next
                top = [(bytes.fromhex(one.hex), math.exp(one.logprob)) for one in theirs[begins].top]
                places.append(number)
                rows.append(known_mass(top))
            end = max(end, stop)
        return tuple(places), torch.stack(rows) if rows else None


def _byte_offsets(text: str) -> list[int]:
    """Where each character begins in UTF-8, and where the last one ends."""
    at = [0]
    for character in text:
        at.append(at[-1] + len(character.encode()))
    return at
