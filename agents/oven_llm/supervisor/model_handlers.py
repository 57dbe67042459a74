"""Model handlers, which send the messages of the supervisor's loop to a model and return its reply.

A handler imports its SDK when it is created. Its calls are synchronous, but run in an event loop (`SHARED`)."""

from __future__ import annotations

import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import urlsplit

from oven_core.errors import ConfigError
from oven_llm import providers
from oven_llm.providers.budget import Budget
from oven_llm.providers.conversation import Conversation, Messages, ModelReply
from oven_llm.providers.failures import ModelFailure
from oven_llm.providers.genai_telemetry import ModelCall, trace
from oven_llm.providers.loop_thread import SHARED
from oven_llm.providers.remote_model import RemoteModel
from oven_llm.supervisor.run_logger import Role
from oven_runs.settings.judge_providers import NO_KEY, Wire, catalogue, endpoint_of, key_of
from oven_runs.settings.language_models import ModelSettings

TIMEOUT_S: Final = 120.0
"""Timeout of one call in seconds, including its retries. A long answer from a large model may take one minute."""
MAX_TOKENS: Final = 2048
"""Maximum tokens in an answer, as for the supervisor in Supervisor Distillation."""
LOOPBACK_HOSTS: Final = ("localhost", "127.0.0.1", "::1")
DEFAULT_BASE_URL: Final = "https://api.together.xyz/v1"
"""Default endpoint, as in Supervisor Distillation. The environment variable BASE_URL overrides it."""
KEY_OPTIONS: Final = "--key-env (key_env; --worker-key-env for a worker at another address)"
"""The options that set the API key's environment variable, for error messages."""


class ModelHandler(AbstractContextManager["ModelHandler"], ABC):
    """A model. A subclass must implement `chat`, which several threads may call at the same time."""

    model: str
    secrets: tuple[str, ...] = ()
    """Strings that must not be written to a file, such as its API key."""

    @abstractmethod
    def chat(self, messages: Messages) -> ModelReply:
        """Return the model's reply, which may be a refusal. Raises ModelFailure."""

    def close(self) -> None:
        """Close the handler's connections."""

    def __exit__(self, *_: object) -> None:
        self.close()


class ProviderHandler(ModelHandler):
    """A model at an address. `from_settings` creates a handler for any provider in the catalogue."""

    def __init__(
        self,
        model: RemoteModel,
        *,
        temperature: float | None = None,
        max_tokens: int = MAX_TOKENS,
        budget: Budget | None = None,
        account: str = "",
        timeout_s: float = TIMEOUT_S,
        secrets: Sequence[str] = (),
    ) -> None:
        """Without `temperature`, the API's default applies. Calls are charged to `account` in `budget`, by default
        under the model's name. `secrets`, such as the API key, are never logged. Raises ConfigError for an invalid
        number, and if the budget is capped in US dollars and the model's price is unknown."""
        for name, value in (("max_tokens", max_tokens), ("timeout_s", timeout_s)):
            if value <= 0:
                raise ConfigError(f"{name} is {value:g}; expected a number above 0")
        if temperature is not None and not 0 <= temperature <= 2:
            raise ConfigError(f"the temperature is {temperature:g}; expected 0 to 2")
        self.model, self.secrets = model.model, tuple(secret for secret in secrets if secret and secret != NO_KEY)
        self._model = model if budget is None else model.with_budget(budget, account or model.model)
        self._temperature, self._max_tokens, self._timeout_s = temperature, max_tokens, timeout_s

    @classmethod
    def from_settings(
        cls, settings: ModelSettings, providers_file: str = "", name: str = "supervisor", **options: Any
    ) -> Self:
        """Connect to the model in `settings`, which error messages call `name`. Raises ConfigError."""
        endpoint = endpoint_of(name, settings, catalogue(providers_file), name)
        key = key_of(name, endpoint, setting=name)
        return cls(providers.connect(name, endpoint, key), secrets=(key,), **options)

    def chat(self, messages: Messages) -> ModelReply:
        return SHARED.run(self._chat(messages))

    def close(self) -> None:
        SHARED.run(self._model.close())

    async def _chat(self, messages: Messages) -> ModelReply:
        started_ns = time.time_ns()
        reply: ModelReply | None = None
        failure_kind = None
        try:
            conversation = Conversation(messages, self._max_tokens, temperature=self._temperature)
            reply = await self._model.ask(conversation, self._timeout_s)
            return reply
        except ModelFailure as failure:
            failure_kind = failure.kind
            raise
        finally:
            if failure_kind != "budget":  # a call that the budget refuses is never sent
                trace(ModelCall(self._model, reply, failure_kind, started_ns))


class OpenAIHandler(ProviderHandler):
    """A model at an endpoint with OpenAI's chat completions API: hosted models, vLLM, llama.cpp and others."""

    def __init__(
        self,
        model: str,
        base_url: str,
        temperature: float | None = None,
        max_tokens: int = MAX_TOKENS,
        api_key: str | None = None,
        **options: Any,
    ) -> None:
        """Without `api_key`, the key is read from the environment variable that the provider catalogue names for this
        address. An address on this machine requires no key. Raises ConfigError if the key or the SDK is missing."""
        remote_model, key = _connect_address("openai", model, base_url, api_key)
        super().__init__(remote_model, temperature=temperature, max_tokens=max_tokens, secrets=(key,), **options)


class AnthropicHandler(ProviderHandler):
    """A model at an endpoint with Anthropic's messages API."""

    def __init__(
        self,
        model: str,
        base_url: str = "https://api.anthropic.com",
        temperature: float | None = None,
        max_tokens: int = MAX_TOKENS,
        api_key: str | None = None,
        **options: Any,
    ) -> None:
        """Accepts the same arguments as OpenAIHandler, but the address does not include /v1."""
        remote_model, key = _connect_address("anthropic", model, base_url, api_key)
        super().__init__(remote_model, temperature=temperature, max_tokens=max_tokens, secrets=(key,), **options)


def validate_address(address: str, owner: str) -> str:
    """Return an HTTP address without trailing slashes. Raises ConfigError if it is invalid or contains a user, a
    password or a query. The message does not quote these, because they may be secret."""
    if re.search("[@?#]", address):
        raise ConfigError(f"the address of {owner} contains a user, a password or a query; use {KEY_OPTIONS} instead")
    try:
        host = urlsplit(address).hostname if re.fullmatch(r"https?://\S+", address) else None
    except ValueError:  # an incomplete IPv6 address
        host = None
    if not host:
        raise ConfigError(
            f"the address of {owner} is {address!r}; expected an address such as https://api.together.xyz/v1"
        )
    return address.rstrip("/")


def _connect_address(wire: Wire, model: str, base_url: str, api_key: str | None) -> tuple[RemoteModel, str]:
    """Return the model at this address and its API key."""
    base_url = validate_address(base_url, model)
    api_key = api_key or find_api_key(base_url) or NO_KEY
    if provider := _find_provider(base_url, wire):
        settings = ModelSettings(provider=provider, model=model)
    else:
        generic_provider = "claude" if wire == "anthropic" else "compatible"
        settings = ModelSettings(provider=generic_provider, model=model, base_url=base_url)
    return providers.connect(model, endpoint_of(model, settings, catalogue(), "model"), api_key), api_key


def find_api_key(address: str, key_env: str | None = None, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the API key for an address; None if it requires none. A provider's key is sent only to its own address,
    unless `key_env` is set. Raises ConfigError if the key is missing."""
    variable = key_env
    if not variable and (provider := _find_provider(address)):
        variable = catalogue()[provider].key_env
    if not variable:
        if urlsplit(address).hostname in LOOPBACK_HOSTS:
            return None
        raise ConfigError(
            f"no API key for {address}: use {KEY_OPTIONS} to name the environment variable with it, or pass api_key"
        )
    if key := environ.get(variable, "").strip():
        return key
    raise ConfigError(
        f"no API key for {address}: the environment variable {variable} is not set; set it, choose another variable "
        f"with {KEY_OPTIONS}, or use another endpoint (BASE_URL, --base-url), e.g. http://127.0.0.1:8000/v1"
    )


def _find_provider(address: str, wire: Wire | None = None) -> str:
    """Return the name of the provider with this address in the catalogue, or an empty string."""
    for name, entry in catalogue().items():
        if entry.base_url.rstrip("/") == address and wire in (None, entry.wire):
            return name
    return ""


@dataclass(frozen=True)
class RoleDefaults:
    """A role's defaults, as in Supervisor Distillation."""

    model_variable: str  # environment variable that overrides the model
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
    """Return a role's model. If `model` or `base_url` is None, an environment variable or the default replaces it. The
    API key is in the environment variable `key_env`, or in the one that `find_api_key` chooses. Raises ConfigError if
    the key is missing or the SDK is not installed."""
    defaults = DEFAULTS[role]
    name = model or environ.get(defaults.model_variable) or defaults.model
    address = validate_address(base_url or environ.get("BASE_URL") or DEFAULT_BASE_URL, f"the {role}")
    settings = {"temperature": defaults.temperature, "max_tokens": defaults.max_tokens, **options}
    settings |= {"budget": budget, "account": role}
    key = find_api_key(address, key_env, environ)
    if urlsplit(address).hostname == "api.anthropic.com":
        return AnthropicHandler(name, address, api_key=key, **settings)
    return OpenAIHandler(name, address, api_key=key, **settings)
