"""Supervisor and worker by flags and Supervisor Distillation's environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from oven_core.errors import ConfigError
from oven_llm.supervisor.log import Role
from oven_llm.supervisor.models import LOOPBACK, AnthropicHandler, ModelHandler, OpenAIHandler, checked_address
from oven_runs.settings.judge_providers import catalogue

BASE_URL: Final = "https://api.together.xyz/v1"
"""As in Supervisor Distillation; the variable BASE_URL names another."""

OPTIONS: Final = "--key-env (key_env; for a worker behind another address --worker-key-env)"
NO_WORKER_URL: Final = "--worker-key-env is the key's of --worker-base-url, which is not given; --key-env is for both"


@dataclass(frozen=True)
class Usual:
    """What a role has where nothing is said, as in Supervisor Distillation."""

    variable: str
    model: str
    temperature: float
    max_tokens: int


USUAL: Final[Mapping[Role, Usual]] = {
    "supervisor": Usual("SUPERVISOR_MODEL", "meta-llama/Llama-3.3-70B-Instruct-Turbo", 0.7, 2048),
    "worker": Usual("WORKER_MODEL", "meta-llama/Llama-3.1-8B-Instruct-Turbo", 0.2, 512),
}


def configured_model(
    role: Role,
    model: str | None = None,
    base_url: str | None = None,
    key_env: str | None = None,
    environ: Mapping[str, str] = os.environ,
    **options: Any,
) -> ModelHandler:
    """The model of a role. What is None comes from the role's variable or BASE_URL, or is the usual one. `key_env`
    names the variable with the key; without it `address_key` finds it. `options` are the handler's. Raises ConfigError
    where a key is missing, and without the SDK."""
    usual = USUAL[role]
    name = model or environ.get(usual.variable) or usual.model
    address = checked_address(base_url or environ.get("BASE_URL") or BASE_URL, f"the {role}")
    given = {"temperature": usual.temperature, "max_tokens": usual.max_tokens, **options}
    key = address_key(address, key_env, environ)
    if urlsplit(address).hostname == "api.anthropic.com":
        return AnthropicHandler(name, address, api_key=key, **given)
    return OpenAIHandler(name, address, api_key=key, **given)


def address_key(address: str, key_env: str | None = None, environ: Mapping[str, str] = os.environ) -> str | None:
    """The key for an address; None: it needs none. A key goes to its provider's address alone, or where `key_env` says.
    Raises ConfigError, which names the variable and never its value."""
    name = key_env or _variable(address)
    if not name:
        if urlsplit(address).hostname in LOOPBACK:
            return None
        raise ConfigError(f"there is no key for {address}: name the variable that holds it with {OPTIONS}")
    if key := environ.get(name, "").strip():
        return key
    raise ConfigError(
        f"there is no key for {address}: the environment variable {name} is not set; export it, name another with "
        f"{OPTIONS}, or name another endpoint (BASE_URL, --base-url), e.g. http://127.0.0.1:8000/v1"
    )


def _variable(address: str) -> str:
    """Of the catalogue's provider with this address; empty: there is none."""
    named = (one.key_env for one in catalogue().values() if one.key_env and one.base_url.rstrip("/") == address)
    return next(named, "")
