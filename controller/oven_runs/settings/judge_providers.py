"""The catalogue of providers: how each is spoken to, which variable holds its key, and what its models can do.

`judge_providers.yaml` is the packaged one. It is data that both sides read: `up`, `--dry-run` and `doctor` check
members against it, and a member's process speaks by it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from oven_core.errors import ConfigError, UnknownNameError
from oven_runs.settings.committee_settings import MOST_LOGPROBS, Address, MemberSettings
from oven_runs.settings.language_models import ModelSettings
from oven_runs.settings.layers import Layer, merge, read_text, read_yaml, validated
from oven_runs.settings.strict_yaml import key_lines, load_yaml
from oven_runs.settings.variable_name import Variable

Wire: TypeAlias = Literal["openai", "anthropic"]
SchemaMode: TypeAlias = Literal["strict", "json_object", "none"]
"""What an answer is held to: our JSON Schema, any JSON object, or nothing."""
Catalogue: TypeAlias = Mapping[str, "ProviderEntry"]

PACKAGED = "judge_providers.yaml"
NO_KEY = "none"
"""What an endpoint of yours is sent where no key is named: the SDKs insist on some string."""


class Price(BaseModel):
    """US dollars per million tokens."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    input: float = Field(ge=0, le=10_000, allow_inf_nan=False)
    output: float = Field(ge=0, le=10_000, allow_inf_nan=False)
    cached_input: float | None = Field(default=None, ge=0, le=10_000, description="none: as `input`")
    cache_write: float | None = Field(
        default=None, ge=0, le=10_000, description="of Anthropic's cache; none: as `input`"
    )


class ModelException(BaseModel):
    """Where one model differs from its provider."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    schema_mode: SchemaMode | None = Field(default=None, alias="schema")
    top_logprobs: int | None = Field(default=None, ge=0, le=MOST_LOGPROBS)
    limit_as: Literal["max_tokens", "max_completion_tokens"] | None = None
    price: Price | None = None


class ProviderEntry(BaseModel):
    """One provider. `models`: exceptions by a model's name, or by a pattern with * and ?; a name goes before a pattern,
    and of two patterns the longer one."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    wire: Wire = Field(description="whose API it speaks")
    base_url: Address = Field(default="", description="empty: a member has to name it")
    key_env: Variable = Field(default="", description="environment variable with the key; empty: none is sent")
    schema_mode: SchemaMode = Field(default="strict", alias="schema")
    top_logprobs: int = Field(default=0, ge=0, le=MOST_LOGPROBS, description="alternatives a token, at most; 0: none")
    limit_as: Literal["max_tokens", "max_completion_tokens"] = Field(
        default="max_completion_tokens", description="what the wire format openai calls the most tokens of an answer"
    )
    known_as: str = Field(default="", description="gen_ai.provider.name in spans; empty: the entry's own name")
    priced_as: str = Field(default="", description="its id in genai-prices; empty: looked up by the address")
    price: Price | None = Field(default=None, description="of all its models that have none of their own")
    models: dict[str, ModelException] = Field(default_factory=dict)

    def exception(self, model: str) -> ModelException:
        """What is different about this model."""
        if model in self.models:
            return self.models[model]
        fitting = [pattern for pattern in self.models if fnmatchcase(model, pattern)]
        return self.models[max(fitting, key=len)] if fitting else ModelException()


@dataclass(frozen=True)
class ModelEndpoint:
    """One model behind one address, with all that is known of it before it is asked."""

    provider: str
    model: str
    wire: Wire
    base_url: str
    own_address: bool
    """The member's own `base_url` took the place of the provider's."""
    key_env: str
    """The variable with its key; empty: it is asked without one."""
    schema_mode: SchemaMode
    top_logprobs: int
    limit_as: str
    known_as: str
    priced_as: str
    price: Price | None


@cache
def packaged() -> Catalogue:
    """The catalogue that is installed."""
    return _entries(load_yaml((files(__package__) / PACKAGED).read_text()), [])


def catalogue(overlay: str | Path = "") -> Catalogue:
    """The packaged catalogue with the user's file laid over it. Raises ConfigError for a file that cannot be read, and
    for what does not fit the form.

    An entry that moves a provider to another address and names no key loses the provider's: a key does not go to
    another address unasked.
    """
    if not overlay:
        return packaged()
    path = Path(overlay)
    given = read_yaml(path)
    merged: dict[str, Any] = load_yaml((files(__package__) / PACKAGED).read_text())
    for name, entry in given.items():
        if isinstance(entry, Mapping) and "base_url" in entry and "key_env" not in entry and name in merged:
            merged[name] = {key: value for key, value in merged[name].items() if key != "key_env"}
    merge(merged, given)
    return _entries(merged, [Layer(str(path), given, "file", key_lines(read_text(path)))])


def _entries(values: Mapping[str, Any], layers: list[Layer]) -> Catalogue:
    found = {}
    source = layers[0].source if layers else PACKAGED
    for name, entry in values.items():
        if not isinstance(entry, Mapping):
            raise ConfigError(f"{source}: {name} is {str(entry)[:40]!r}; a provider is written as `key: value` lines")
        if "wire" not in entry:
            raise ConfigError(f"{source}: the provider {name} is new here and needs `wire`: openai or anthropic")
        found[name] = validated(ProviderEntry, entry, f"{name}.", layers, None)
    return found


CALIBRATOR = "committee.frontier"
"""Where the calibrator's model is set: neither a member's nor an agent's."""


def endpoint_of(name: str, member: MemberSettings | ModelSettings, known: Catalogue, at: str = "") -> ModelEndpoint:
    """Who the member `name` asks; `at` is the setting, for an agent's model. Raises ConfigError for a provider that the
    catalogue lacks, with the nearest names, and where there is no address."""
    who, at = _called(name, at)
    if member.provider not in known:
        raise ConfigError(f"{who}: {UnknownNameError('provider', member.provider, known)}")
    entry = known[member.provider]
    if not member.base_url and not entry.base_url:
        raise ConfigError(
            f"{who} has no address: the provider {member.provider!r} needs {at}.base_url, e.g. http://127.0.0.1:8000/v1"
        )
    special = entry.exception(member.model)
    own = bool(member.base_url)
    return ModelEndpoint(
        provider=member.provider,
        model=member.model,
        wire=entry.wire,
        base_url=member.base_url or entry.base_url,
        own_address=own,
        key_env=member.key_env or ("" if own else entry.key_env),
        schema_mode=special.schema_mode or entry.schema_mode,
        top_logprobs=entry.top_logprobs if special.top_logprobs is None else special.top_logprobs,
        limit_as=special.limit_as or entry.limit_as,
        known_as=entry.known_as or member.provider,
        priced_as="" if own else entry.priced_as,
        price=special.price or entry.price,
    )


def key_of(name: str, asked: ModelEndpoint, environ: Mapping[str, str] = os.environ, at: str = "") -> str:
    """The member's key; `at` as of `endpoint_of`. Raises ConfigError that names the variable, never its value.

    The provider's usual variable counts for the provider's own address only: a key does not go to another one unasked.
    """
    if not asked.key_env:
        return NO_KEY
    who, at = _called(name, at)
    key = environ.get(asked.key_env, "").strip()
    if not key:
        raise ConfigError(
            f"{who} has no key: the environment variable {asked.key_env} is not set; "
            f"export it, or name another with {at}.key_env"
        )
    if not re.fullmatch(r"[!-~]+", key):
        raise ConfigError(
            f"{who}: the environment variable {asked.key_env} holds characters that no key has "
            "(a space, a line break or something outside ASCII); set it again"
        )
    return key


def _called(name: str, at: str) -> tuple[str, str]:
    """How an error names it, and where its settings are."""
    if at == CALIBRATOR:
        return "the frontier calibrator", at
    return (f"the model of agent {name!r}", at) if at else (f"committee member {name!r}", f"committee.members.{name}")
