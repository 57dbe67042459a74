"""The frontier model's answers to a fixed set of prompts: fetched once, kept in the run's folder, read by the learner.

    runs/<run>/probes/<key>.json          the answers, with the alternatives to each token; only its owner may read it
    runs/<run>/probes/<key>.begin.json    what the policy was like at its first reading, by training

The key is of provider, address, model and prompts: another of them is another set.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from oven_core.errors import ConfigError, reason
from oven_core.files import read_file, write_atomic

FOLDER = "probes"
MOST_PROMPTS = 512
"""In a set: the policy reads all of them at each reading, and the provider is paid for each."""
PROMPTS_BYTES = 8 << 20
"""Of a file of prompts."""
SET_BYTES = 256 << 20
"""Of a set: 512 answers of 1,024 tokens with 20 alternatives each have a tenth of it."""


class Alternative(BaseModel):
    """A token that the model might have written, and how likely it was."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    hex: str = Field(description="its bytes; empty: a mark that is not text, such as the end")
    logprob: float = Field(le=1e-6, description="nats")


class Token(BaseModel):
    """One token that the model wrote."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    hex: str = Field(description="its bytes")
    top: tuple[Alternative, ...] = Field(description="the most likely tokens at its place, itself among them or not")


class Probe(BaseModel):
    """One prompt and the model's answer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompt: str
    completion: str
    tokens: tuple[Token, ...] = Field(
        default=(), description="of the completion, byte for byte; none: the provider gives no log-probabilities"
    )


class ProbeSet(BaseModel):
    """A whole set."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    provider: str
    model: str
    probes: tuple[Probe, ...] = Field(min_length=1)
    lacks: str = Field(default="", description="what there is not, in a sentence for people")

    @property
    def has_logprobs(self) -> bool:
        """Whether a KL can be measured by it."""
        return any(probe.tokens for probe in self.probes)


def key(provider: str, base_url: str, model: str, prompts: Sequence[str]) -> str:
    """The set's name on disk."""
    return hashlib.sha256(json.dumps([provider, base_url, model, *prompts]).encode()).hexdigest()[:16]


def path(run_folder: Path, key: str) -> Path:
    """Where a set is kept."""
    return run_folder / FOLDER / f"{key}.json"


def read_prompts(file: Path) -> tuple[str, ...]:
    """One prompt per line, or with the suffix .jsonl an object with "prompt" per line; empty lines are passed over.
    Raises ConfigError for a file that cannot be read, has no prompt, one twice or more than MOST_PROMPTS."""
    try:
        text = read_file(file, "the prompts of committee.frontier", PROMPTS_BYTES).decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8: {reason(error)}") from error
    found = []
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):  # splitlines also parts at U+2028
        if line.strip():
            found.append(_prompt(file, number, line) if file.suffix == ".jsonl" else line)
    if not found:
        raise ConfigError(f"{file} has no prompts; write one per line")
    if len(found) > MOST_PROMPTS:
        raise ConfigError(f"{file} has {len(found):,} prompts, and a set has {MOST_PROMPTS} at most: take fewer")
    if len(set(found)) < len(found):
        raise ConfigError(f"{file} has a prompt twice; leave one of them out")
    return tuple(found)


def _prompt(file: Path, number: int, line: str) -> str:
    try:
        prompt = json.loads(line)["prompt"]
    except (ValueError, LookupError, TypeError, RecursionError):
        prompt = None
    if not isinstance(prompt, str) or not prompt.strip():
        raise ConfigError(f'{file}:{number} is not an object with "prompt": "TEXT"')
    return prompt


def write(run_folder: Path, key: str, found: ProbeSet) -> None:
    """Keep a set. Raises OSError."""
    place = path(run_folder, key)
    place.parent.mkdir(exist_ok=True)
    write_atomic(place, found.model_dump_json() + "\n", private=True)


def read(run_folder: Path, key: str) -> ProbeSet | None:
    """The set, once it is there. Raises ConfigError for a file that is damaged."""
    place = path(run_folder, key)
    if not place.exists():
        return None
    try:
        return ProbeSet.model_validate_json(read_file(place, "the probe set", SET_BYTES))
    except ValidationError as error:
        raise ConfigError(
            f"{place} is damaged ({error.error_count()} faults); remove it to fetch the set again"
        ) from None
