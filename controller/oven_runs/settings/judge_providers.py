"""Look up providers in the catalogue: each provider's API, its key variable and the features of its models.

`judge_providers.yaml` is the packaged catalogue. `up`, `--dry-run` and `doctor` check settings against it, and
processes that call models use it.
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
from typing import Any, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from oven_core.errors import ConfigError, UnknownNameError
from oven_runs.settings.committee_settings import MAX_LOGPROBS, MemberSettings
from oven_runs.settings.language_models import Address, ModelSettings, Variable
from oven_runs.settings.layers import Layer, merge, read_text, read_yaml, validate
from oven_runs.settings.strict_yaml import key_lines, load_yaml

Wire: TypeAlias = Literal["openai", "anthropic"]
"""The wire format of an API, named after the SDK package that speaks it."""
SchemaMode: TypeAlias = Literal["strict", "json_object", "none"]
"""The strictest schema that an endpoint can enforce: our JSON Schema, any JSON object, or nothing."""
Catalogue: TypeAlias = Mapping[str, "ProviderEntry"]

PACKAGED_FILE: Final = "judge_providers.yaml"
NO_KEY: Final = "none"
"""Placeholder key for endpoints without authentication. The SDKs require a non-empty string."""
CALIBRATOR: Final = "committee.frontier"
"""Name of the setting for the calibrator's model."""


class Price(BaseModel):
    """US dollars per million tokens."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    input: float = Field(ge=0, le=10_000, allow_inf_nan=False)
    output: float = Field(ge=0, le=10_000, allow_inf_nan=False)
    cached_input: float | None = Field(default=None, ge=0, le=10_000, description="defaults to the price of `input`")
    cache_write: float | None = Field(
        default=None, ge=0, le=10_000, description="for writing to Anthropic's cache; defaults to the price of `input`"
    )


class ModelOverrides(BaseModel):
    """Settings of one model that differ from its provider's defaults."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    schema_mode: SchemaMode | None = Field(default=None, alias="schema")
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    token_limit_field: Literal["max_tokens", "max_completion_tokens"] | None = None
    price: Price | None = None


class ProviderEntry(BaseModel):
    """A provider. `models` maps a model's name, or a pattern with * and ?, to overrides. A name takes precedence over
    a pattern, and a longer pattern over a shorter one."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    wire: Wire = Field(description="wire format of its API")
    base_url: Address = Field(default="", description="address of the API; if empty, a member must set it")
    key_env: Variable = Field(default="", description="environment variable with the key; if empty, none is sent")
    schema_mode: SchemaMode = Field(default="strict", alias="schema")
    top_logprobs: int = Field(default=0, ge=0, le=MAX_LOGPROBS, description="maximum alternatives per token")
    token_limit_field: Literal["max_tokens", "max_completion_tokens"] = Field(
        default="max_completion_tokens", description="the request field for the token limit, in the wire format openai"
    )
    telemetry_name: str = Field(default="", description="gen_ai.provider.name in spans; if empty, the entry's own name")
    price_id: str = Field(default="", description="the provider's id in genai-prices; if empty, found by the address")
    price: Price | None = Field(default=None, description="price of all the provider's models without one in `models`")
    models: dict[str, ModelOverrides] = Field(default_factory=dict)

    def overrides_for(self, model: str) -> ModelOverrides:
        """Return the overrides for this model, which are empty for most models."""
        if model in self.models:
            return self.models[model]
        patterns = [pattern for pattern in self.models if fnmatchcase(model, pattern)]
        return self.models[max(patterns, key=len)] if patterns else ModelOverrides()


@dataclass(frozen=True)
class ModelEndpoint:
    """A model at an address, with its settings and catalogue entries combined."""

    provider: str
    model: str
    wire: Wire
    base_url: str
    key_env: str
    """The environment variable with the key. Empty: no key is sent."""
    schema_mode: SchemaMode
    top_logprobs: int
    token_limit_field: str
    telemetry_name: str
    price_id: str
    price: Price | None


@cache
def packaged_catalogue() -> Catalogue:
    """Return the packaged catalogue."""
    return _validated_entries(_read_packaged_file(), [])


def catalogue(overlay: str | Path = "") -> Catalogue:
    """Return the packaged catalogue, merged with the user's file. Raises ConfigError for an unreadable or invalid file.
    If an entry moves a provider to another address without naming a key, the provider's key is dropped. A key is never
    sent to another address unless the user asks for it."""
    if not overlay:
        return packaged_catalogue()
    path = Path(overlay)
    user_entries = read_yaml(path)
    values = _read_packaged_file()
    for name, entry in user_entries.items():
        if isinstance(entry, Mapping) and "base_url" in entry and "key_env" not in entry and name in values:
            values[name] = {key: value for key, value in values[name].items() if key != "key_env"}
    merge(values, user_entries)
    return _validated_entries(values, [Layer(str(path), user_entries, "file", key_lines(read_text(path)))])


def endpoint_of(
    name: str, model_settings: MemberSettings | ModelSettings, providers: Catalogue, setting: str = ""
) -> ModelEndpoint:
    """Return the endpoint of a model. `name` is the committee member or agent that uses it. `setting` is the name of
    the model's setting, or empty for a member. Raises ConfigError for an unknown provider or a missing address."""
    owner, setting = _owner_and_setting(name, setting)
    if model_settings.provider not in providers:
        raise ConfigError(f"{owner}: {UnknownNameError('provider', model_settings.provider, providers)}")
    entry = providers[model_settings.provider]
    if not model_settings.base_url and not entry.base_url:
        raise ConfigError(
            f"{owner} has no address: the provider {model_settings.provider!r} needs {setting}.base_url, e.g. "
            "http://127.0.0.1:8000/v1"
        )
    overrides = entry.overrides_for(model_settings.model)
    has_own_address = bool(model_settings.base_url)
    return ModelEndpoint(
        provider=model_settings.provider,
        model=model_settings.model,
        wire=entry.wire,
        base_url=model_settings.base_url or entry.base_url,
        key_env=model_settings.key_env or ("" if has_own_address else entry.key_env),
        schema_mode=overrides.schema_mode or entry.schema_mode,
        top_logprobs=entry.top_logprobs if overrides.top_logprobs is None else overrides.top_logprobs,
        token_limit_field=overrides.token_limit_field or entry.token_limit_field,
        telemetry_name=entry.telemetry_name or model_settings.provider,
        price_id="" if has_own_address else entry.price_id,
        price=overrides.price or entry.price,
    )


def key_of(name: str, endpoint: ModelEndpoint, environ: Mapping[str, str] = os.environ, setting: str = "") -> str:
    """Return an endpoint's key. For `name` and `setting`, see `endpoint_of`. Raises ConfigError if it is unusable."""
    if not endpoint.key_env:
        return NO_KEY
    owner, setting = _owner_and_setting(name, setting)
    key = environ.get(endpoint.key_env, "").strip()
    if not key:
        raise ConfigError(
            f"{owner} has no key: the environment variable {endpoint.key_env} is not set; "
            f"export it, or name another with {setting}.key_env"
        )
    if not re.fullmatch(r"[!-~]+", key):
        raise ConfigError(
            f"{owner}: the environment variable {endpoint.key_env} contains a character that keys cannot contain "
            "(a space, a line break or a non-ASCII character); set it again"
        )
    return key


def _read_packaged_file() -> dict[str, Any]:
    values: dict[str, Any] = load_yaml((files(__package__) / PACKAGED_FILE).read_text())
    return values


def _validated_entries(values: Mapping[str, Any], layers: list[Layer]) -> Catalogue:
    entries = {}
    source = layers[0].source if layers else PACKAGED_FILE
    for name, entry in values.items():
        if not isinstance(entry, Mapping):
            raise ConfigError(f"{source}: {name} is {str(entry)[:40]!r}; expected a mapping (`key: value` lines)")
        if "wire" not in entry:
            raise ConfigError(
                f"{source}: the provider {name} is not in {PACKAGED_FILE}, so it needs `wire`: openai or anthropic"
            )
        entries[name] = validate(ProviderEntry, entry, f"{name}.", layers, None)
    return entries


def _owner_and_setting(name: str, setting: str) -> tuple[str, str]:
    """Describe the model's owner, and name its setting, for error messages."""
    if setting == CALIBRATOR:
        return "the frontier calibrator", setting
    if setting:
        return f"the model of agent {name!r}", setting
    return f"committee member {name!r}", f"committee.members.{name}"
