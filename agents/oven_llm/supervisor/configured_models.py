"""The supervisor's and the worker's models from command-line options and Supervisor Distillation's variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from oven_core.errors import ConfigError
from oven_llm.providers.budget import Budget
from oven_llm.supervisor.log import Role
from oven_llm.supervisor.models import LOOPBACK, AnthropicHandler, ModelHandler, OpenAIHandler, checked_address
from oven_runs.settings.judge_providers import catalogue

BASE_URL: Final = "https://api.together.xyz/v1"
"""Default endpoint, as in Supervisor Distillation; the variable BASE_URL overrides it."""
OPTIONS: Final = "--key-env (key_env; for a worker behind another address --worker-key-env)"
NO_WORKER_URL: Final = (
    "--worker-key-env needs --worker-base-url, because it names the key for that endpoint; --key-env is for both models"
)


@dataclass(frozen=True)
class RoleDefaults:
    """A role's defaults, as in Supervisor Distillation."""

    variable: str
    model: str
    temperature: float
    max_tokens: int


DEFAULTS: Final[Mapping[Role, RoleDefaults]] = {
    "supervisor": RoleDefaults("SUPERVISOR_MODEL", "meta-llama/Llama-3.3-70B-Instruct-Turbo", 0.7, 2048),
    "worker": RoleDefaults("WORKER_MODEL", "meta-llama/Llama-3.1-8B-Instruct-Turbo", 0.2, 512),
}


def configured_model(
    role: Role,
    model: str | None = None,
    base_url: str | None = None,
    key_env: str | None = None,
    environ: Mapping[str, str] = os.environ,
    budget: Budget | None = None,
    **options: Any,
) -> ModelHandler:
    """Return the model of a role. A `model` or `base_url` of None comes from the role's variable or BASE_URL, or is the
    default. `key_env` names the variable with the key; `address_key` finds it otherwise. `options` are the handler's.
    Raises ConfigError if a key is missing or the SDK is not installed."""
    defaults = DEFAULTS[role]
    name = model or environ.get(defaults.variable) or defaults.model
    address = checked_address(base_url or environ.get("BASE_URL") or BASE_URL, f"the {role}")
    settings = {"temperature": defaults.temperature, "max_tokens": defaults.max_tokens, **options}
    settings |= {"budget": budget, "account": role}
    key = address_key(address, key_env, environ)
    if urlsplit(address).hostname == "api.anthropic.com":
        return AnthropicHandler(name, address, api_key=key, **settings)
    return OpenAIHandler(name, address, api_key=key, **settings)


def address_key(address: str, key_env: str | None = None, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the key for an address, None if it needs none. A key is sent only to its provider's address, or where
    `key_env` says. Raises ConfigError, which names the variable and never its value."""
    variable = key_env or _provider_variable(address)
    if not variable:
        if urlsplit(address).hostname in LOOPBACK:
            return None
        raise ConfigError(f"there is no key for {address}: name the variable that holds it with {OPTIONS}")
    if key := environ.get(variable, "").strip():
        return key
    raise ConfigError(
        f"there is no key for {address}: the environment variable {variable} is not set; export it, name another with "
        f"{OPTIONS}, or name another endpoint (BASE_URL, --base-url), e.g. http://127.0.0.1:8000/v1"
    )


def _provider_variable(address: str) -> str:
    """Return the key's variable of the catalogue's provider with this address, empty if there is none."""
    for provider in catalogue().values():
        if provider.key_env and provider.base_url.rstrip("/") == address:
            return provider.key_env
    return ""
