"""Supervisor and worker by flags and the source system's environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from oven_agents.supervisor.log import Role
from oven_agents.supervisor.models import AnthropicHandler, ModelHandler, OpenAIHandler
from oven_controller.errors import ConfigError

BASE_URL: Final = "https://api.together.xyz/v1"
"""As in the source system; the variable BASE_URL names another."""
TOGETHER: Final = "TOGETHER_API_KEY"
OPENAI: Final = "OPENAI_API_KEY"


@dataclass(frozen=True)
class Usual:
    """What a role has where nothing is said, as in the source system."""

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
    names the variable with the key; without it the key is that of the address: TOGETHER_API_KEY or OPENAI_API_KEY for
    Together's, the catalogue's variable for a provider of the catalogue, and none on this machine. `options` are the
    handler's. Raises ConfigError where a key is missing, and without the SDK."""
    usual = USUAL[role]
    name = model or environ.get(usual.variable) or usual.model
    address = (base_url or environ.get("BASE_URL") or BASE_URL).rstrip("/")
    if (parts := urlsplit(address)).scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"the address of the {role} is {address!r}; give one like {BASE_URL}")
    given = {"temperature": usual.temperature, "max_tokens": usual.max_tokens, **options}
    key = _key(parts.hostname, key_env, environ)
    if parts.hostname == "api.anthropic.com":
        return AnthropicHandler(name, address, api_key=key, **given)
    return OpenAIHandler(name, address, api_key=key, **given)


def _key(host: str, key_env: str | None, environ: Mapping[str, str]) -> str | None:
    """None: the handler finds it by the address. Raises ConfigError, which names the variable and never its value."""
    if key_env is not None:
        if key := environ.get(key_env, "").strip():
            return key
        raise ConfigError(f"there is no key: the environment variable {key_env} is not set; export it")
    if host != urlsplit(BASE_URL).hostname:
        return None
    key = environ.get(TOGETHER, "").strip() or environ.get(OPENAI, "").strip()
    if not key:
        raise ConfigError(
            f"there is no key for {BASE_URL}: export {TOGETHER}, or name another endpoint (BASE_URL, --base-url), e.g. "
            "http://127.0.0.1:8000/v1"
        )
    return key
