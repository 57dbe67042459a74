"""Models for the supervisor's loop: messages in, text and usage out, one call or many at once.

A handler imports its SDK when it is created. Its calls are synchronous, because the supervisor's programs are; the
requests run in a shared event loop in another thread.
"""

from __future__ import annotations

import os
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self, TypeAlias
from urllib.parse import urlsplit

from oven_core.errors import ConfigError
from oven_llm import providers
from oven_llm.providers.budget import Budget
from oven_llm.providers.conversation import Conversation, ModelReply
from oven_llm.providers.failures import ModelFailure
from oven_llm.providers.genai_telemetry import call_record, trace
from oven_llm.providers.loop_thread import SHARED
from oven_llm.providers.remote_model import RemoteModel
from oven_llm.providers.usage import CallTally, Usage, is_priced, tallied
from oven_runs.settings.judge_providers import NO_KEY, Wire, catalogue, endpoint_of, key_of
from oven_runs.settings.language_models import ModelSettings
from oven_runs.traces.records import Message

Messages: TypeAlias = Sequence[Mapping[str, str]]
"""`role` and `content`, as in chat completions."""

TIMEOUT_S: Final = 120.0
"""Seconds for one call with its retries. A long answer of a large model takes one minute."""
MAX_TOKENS: Final = 2048
"""Maximum tokens of an answer, as for Supervisor Distillation's supervisor."""
LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class LMResponse:
    """One answer of a model."""

    text: str
    usage: Usage | None
    """None if the endpoint did not report it."""
    elapsed: float
    """Seconds, failed attempts included."""
    model: str = ""
    """The name that the endpoint reported."""
    usd: float | None = None
    """None if the price is unknown."""
    finish: str = ""
    """The reason why it ended (`providers.conversation.Finish`)."""


class RefusedError(ModelFailure):
    """The model refused. The refusal is billed like any other answer."""

    def __init__(self, response: LMResponse) -> None:
        super().__init__("refusal", "the model refused to answer")
        self.response = response


class ModelHandler(ABC):
    """A model. A backend must implement only `chat`, which several threads call at the same time."""

    model: str
    secrets: tuple[str, ...] = ()
    """Strings that must be in no file, such as its key."""
    batches: bool = False
    """Whether all calls of a batch go to `chat_batch` at once instead of `chat`, as for an engine in this process."""
    priced: bool = True
    """False if the price of its answers is known to be unknown. A cap in US dollars is refused then."""

    @abstractmethod
    def chat(self, messages: Messages) -> LMResponse:
        """Return the model's answer. Raises ModelFailure if there is none."""

    def chat_batch(self, message_batches: Sequence[Messages]) -> list[LMResponse | ModelFailure]:
        """Return an answer or a failure for each batch item, in order."""
        return [_or_failure(self.chat, messages) for messages in message_batches]

    def close(self) -> None:  # noqa: B027 - most backends have nothing to close
        """Close its connections."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ProviderHandler(ModelHandler):
    """A model behind an address. `connected` makes one for any provider of the catalogue."""

    def __init__(
        self,
        provider: RemoteModel,
        *,
        temperature: float | None = None,
        max_tokens: int = MAX_TOKENS,
        budget: Budget | None = None,
        account: str = "",
        timeout_s: float = TIMEOUT_S,
        secrets: Sequence[str] = (),
    ) -> None:
        """`temperature` None is the API's default. `account`: the name for the calls in the budget, by default the
        model's. `secrets`: the key, which must be in no log. Raises ConfigError for an invalid number, and if the
        budget caps US dollars and the model's price is unknown."""
        for name, value in (("max_tokens", max_tokens), ("timeout_s", timeout_s)):
            if value <= 0:
                raise ConfigError(f"{name} is {value:g}; give more than 0")
        if temperature is not None and not 0 <= temperature <= 2:
            raise ConfigError(f"the temperature is {temperature:g}; give 0 to 2")
        self.model, self.secrets = provider.model, tuple(secret for secret in secrets if secret and secret != NO_KEY)
        self._provider = provider if budget is None else provider.within(budget, account or provider.model)
        self._temperature, self._max_tokens, self._timeout_s = temperature, max_tokens, timeout_s
        self.priced = is_priced(provider.settings)

    @classmethod
    def connected(
        cls, settings: ModelSettings, providers_file: str = "", name: str = "supervisor", **options: Any
    ) -> Self:
        """Connect to the model of some settings. `name` is their name in errors, `options` are the class's. Raises
        ConfigError."""
        endpoint = endpoint_of(name, settings, catalogue(providers_file), name)
        key = key_of(name, endpoint, setting=name)
        return cls(providers.connect(name, endpoint, key), secrets=(key,), **options)

    def chat(self, messages: Messages) -> LMResponse:
        """Return the model's answer. Raises ModelFailure, also if the model refuses."""
        return SHARED.run(self._chat(messages))

    def close(self) -> None:
        SHARED.run(self._provider.close())

    async def _chat(self, messages: Messages) -> LMResponse:
        tally, started = CallTally(), time.time_ns()
        reply: ModelReply | None = None
        error = None
        try:
            turns = tuple(Message.model_validate(message) for message in messages)
            with tallied(tally):
                conversation = Conversation(turns, self._max_tokens, temperature=self._temperature)
                (reply,) = await self._provider.ask(conversation, self._timeout_s)
            usage = reply.usage if reply.reported else None
            elapsed = (time.time_ns() - started) / 1e9
            response = LMResponse(reply.text, usage, elapsed, reply.model, reply.cost_usd, reply.finish)
            if reply.finish == "refusal":
                raise RefusedError(response)
            return response
        except ModelFailure as failure:
            error = failure.kind
            raise
        finally:
            if error != "budget":  # no call was made
                record = call_record(self._provider, reply, error, resends=tally.attempts - 1, started_ns=started)
                trace(record)


class OpenAIHandler(ProviderHandler):
    """Any endpoint with OpenAI's chat completions: hosted ones, vLLM's server, llama.cpp, …"""

    def __init__(
        self,
        model: str,
        base_url: str,
        temperature: float | None = None,
        max_tokens: int = MAX_TOKENS,
        api_key: str | None = None,
        **options: Any,
    ) -> None:
        """`api_key` None reads the variable that the catalogue of providers names for this address; an address on this
        machine needs no key. `options` are ProviderHandler's. Raises ConfigError without a key or the SDK."""
        provider, key = _at_address("openai", model, base_url, api_key)
        super().__init__(provider, temperature=temperature, max_tokens=max_tokens, secrets=(key,), **options)


class AnthropicHandler(ProviderHandler):
    """Anthropic's messages API."""

    def __init__(
        self,
        model: str,
        base_url: str = "https://api.anthropic.com",
        temperature: float | None = None,
        max_tokens: int = MAX_TOKENS,
        api_key: str | None = None,
        **options: Any,
    ) -> None:
        """The same as OpenAIHandler, with an address without /v1."""
        provider, key = _at_address("anthropic", model, base_url, api_key)
        super().__init__(provider, temperature=temperature, max_tokens=max_tokens, secrets=(key,), **options)


class VLLMHandler(ModelHandler):
    """A model in this process, with vLLM's engine and without a server. The cost of its answers is unknown."""

    batches = True
    priced = False

    def __init__(self, model: str, temperature: float = 1.0, max_tokens: int = MAX_TOKENS, **engine: Any) -> None:
        """`model`: a folder or a name on the hub. `engine`: arguments of `vllm.LLM`. Raises ConfigError without
        vLLM."""
        try:
            import vllm
        except ImportError as error:
            raise ConfigError(
                f"VLLMHandler needs the package {error.name}: pip install vllm on a machine with a GPU, or start its "
                "server and use OpenAIHandler with the server's address"
            ) from error
        self.model = model
        self._lock = threading.Lock()
        self._engine = vllm.LLM(model=model, **engine)
        self._sampling = vllm.SamplingParams(temperature=temperature, max_tokens=max_tokens)

    def chat(self, messages: Messages) -> LMResponse:
        return self._generate([messages])[0]

    def chat_batch(self, message_batches: Sequence[Messages]) -> list[LMResponse | ModelFailure]:
        """Answer everything in one call of the engine, which batches by itself."""
        return list(self._generate(message_batches))

    def _generate(self, message_batches: Sequence[Messages]) -> list[LMResponse]:
        started = time.perf_counter()
        with self._lock:  # the engine is not thread-safe
            outputs = self._engine.chat(
                [[dict(message) for message in batch] for batch in message_batches], self._sampling
            )
        elapsed = time.perf_counter() - started
        return [_vllm_response(output, elapsed, self.model) for output in outputs]


def _vllm_response(output: Any, elapsed: float, model: str) -> LMResponse:
    """Return the response for vLLM's RequestOutput, which may lack the prompt."""
    completion, prompt = output.outputs[0], output.prompt_token_ids
    usage = None if prompt is None else Usage(len(prompt), len(completion.token_ids))
    return LMResponse(completion.text, usage, elapsed, model, None, completion.finish_reason or "other")


def checked_address(address: str, owner: str) -> str:
    """Return an HTTP address without trailing slashes. Raises ConfigError for anything else, and for an address with a
    user, a password or a query. The message does not repeat those, because addresses appear in settings and logs."""
    if re.search("[@?#]", address):
        raise ConfigError(f"the address of {owner} has a user, a password or a query; name its key's variable instead")
    try:
        host = urlsplit(address).hostname if re.fullmatch(r"https?://\S+", address) else None
    except ValueError:  # half an IPv6 address
        host = None
    if not host:
        raise ConfigError(f"the address of {owner} is {address!r}; give one like https://api.together.xyz/v1")
    return address.rstrip("/")


def _at_address(wire: Wire, model: str, base_url: str, api_key: str | None) -> tuple[RemoteModel, str]:
    providers_by_name = catalogue()
    base_url = checked_address(base_url, model)
    names = (
        name
        for name, entry in providers_by_name.items()
        if entry.wire == wire and entry.base_url.rstrip("/") == base_url
    )
    if provider := next(names, None):
        settings = ModelSettings(provider=provider, model=model)
    else:
        generic = "claude" if wire == "anthropic" else "compatible"
        settings = ModelSettings(provider=generic, model=model, base_url=base_url)
    endpoint = endpoint_of(model, settings, providers_by_name, "model")
    if api_key is None:
        if not endpoint.key_env and urlsplit(base_url).hostname not in LOOPBACK:
            raise ConfigError(f'no key for {base_url}: give api_key, e.g. os.environ["MY_SERVERS_KEY"]')
        api_key = key_of(model, endpoint, os.environ, "model") if endpoint.key_env else NO_KEY
    return providers.connect(model, endpoint, api_key), api_key


def _or_failure(chat: Callable[[Messages], LMResponse], messages: Messages) -> LMResponse | ModelFailure:
    try:
        return chat(messages)
    except ModelFailure as failure:
        return failure
