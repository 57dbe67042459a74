"""Store a frontier model's answers to a fixed set of prompts, which are fetched once and read by the learner.

    runs/<run>/probes/<key>.json          the answers, with alternatives to each token; only the owner may read it
    runs/<run>/probes/<key>.begin.json    the policy's first measurement, for each training

The key is a hash of provider, address, model and prompts.
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
MAX_PROMPTS = 512
"""Maximum prompts in a set. The provider charges for each one, and each measurement of the policy uses all of them."""
MAX_PROMPTS_BYTES = 8 << 20
"""Maximum bytes of a file of prompts."""
MAX_SET_BYTES = 256 << 20
"""Maximum bytes of a stored set. 512 answers of 1,024 tokens with 20 alternatives each take a tenth of it."""


class Alternative(BaseModel):
    """An alternative token with its log-probability."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    hex: str = Field(description="the token's bytes; empty for a special token, such as the end of the answer")
    logprob: float = Field(le=1e-6, description="log-probability in nats")


class Token(BaseModel):
    """One token of the model's answer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    hex: str = Field(description="the token's bytes")
    top: tuple[Alternative, ...] = Field(description="the most likely tokens at its position")


class Probe(BaseModel):
    """One prompt and the model's answer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompt: str
    completion: str
    tokens: tuple[Token, ...] = Field(
        default=(), description="the completion's tokens; empty if the provider returns no log-probabilities"
    )


class ProbeSet(BaseModel):
    """The answers of one model to all prompts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    provider: str
    model: str
    probes: tuple[Probe, ...] = Field(min_length=1)
    missing_features: str = Field(default="", description="the features that the provider lacks, as a sentence")


def key_of(provider: str, base_url: str, model: str, prompts: Sequence[str]) -> str:
    """Return the key of the set of these prompts."""
    return hashlib.sha256(json.dumps([provider, base_url, model, *prompts]).encode()).hexdigest()[:16]


def path_of(run_folder: Path, key: str) -> Path:
    """Return the path of the set's file."""
    return run_folder / FOLDER / f"{key}.json"


def read_prompts(file: Path) -> tuple[str, ...]:
    """Read one prompt per line, or one object with "prompt" per line of a .jsonl file. Empty lines are skipped. Raises
    ConfigError if the file cannot be read, or has no prompts, duplicates, or more than MAX_PROMPTS."""
    try:
        text = read_file(file, "the prompts of committee.frontier", MAX_PROMPTS_BYTES).decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8: {reason(error)}") from error
    prompts = []
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):  # splitlines also splits at U+2028
        if line.strip():
            prompts.append(_parse_prompt(file, number, line) if file.suffix == ".jsonl" else line)
    if not prompts:
        raise ConfigError(f"{file} has no prompts; write one per line")
    if len(prompts) > MAX_PROMPTS:
        raise ConfigError(f"{file} has {len(prompts):,} prompts, but at most {MAX_PROMPTS} are allowed: use fewer")
    if len(set(prompts)) < len(prompts):
        raise ConfigError(f"{file} has a duplicate prompt; remove one of them")
    return tuple(prompts)


def _parse_prompt(file: Path, number: int, line: str) -> str:
    try:
        prompt = json.loads(line)["prompt"]
    except (ValueError, LookupError, TypeError, RecursionError):
        prompt = None
    if not isinstance(prompt, str) or not prompt.strip():
        raise ConfigError(f'{file}:{number} is not an object with "prompt": "TEXT"')
    return prompt


def write(run_folder: Path, key: str, probe_set: ProbeSet) -> None:
    """Save a set. Raises OSError."""
    file = path_of(run_folder, key)
    file.parent.mkdir(exist_ok=True)
    write_atomic(file, probe_set.model_dump_json() + "\n", private=True)


def read(run_folder: Path, key: str) -> ProbeSet | None:
    """Return the set, or None if it has not been fetched yet. Raises ConfigError for a damaged file."""
    file = path_of(run_folder, key)
    if not file.exists():
        return None
    try:
        return ProbeSet.model_validate_json(read_file(file, "the probe set", MAX_SET_BYTES))
    except ValidationError as error:
        raise ConfigError(
            f"{file} is damaged ({error.error_count()} errors); remove it to fetch the set again"
        ) from None
