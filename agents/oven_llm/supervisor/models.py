"""Models as the supervisor's loop sees them: messages in, text and usage out, one at a time or many at once.

A handler is made where the SDK it needs is installed; the SDKs are imported then, and not before. Its calls are
synchronous, since the programs that the supervisor writes are; the requests are made in one event loop beside them.
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
"""`role` and `content`, as chat completions have them."""

TIMEOUT_S: Final = 120.0
"""Seconds for one call with its repetitions: a long answer of a large model takes one minute."""
MAX_TOKENS: Final = 2048
"""Of an answer, as Supervisor Distillation's supervisor has it."""
LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class LMResponse:
    """One answer of a model's."""

    text: str
    usage: Usage | None
    """None where the endpoint did not say."""
    elapsed: float
    """Seconds, attempts that failed before it included."""
    model: str = ""
    """As the endpoint called it."""
    usd: float | None = None
    """None: the price is not known."""
    finish: str = ""
    """Why it ended (`providers.conversation.Finish`)."""


class RefusedError(ModelFailure):
    """The model refused, in an answer that is billed as any other."""

    def __init__(self, response: LMResponse) -> None:
        super().__init__("refusal", "the model refused to answer")
        self.response = response


class ModelHandler(ABC):
    """A model that is asked. `chat` is called from several threads at a time, and is all that another backend needs."""

    model: str
    secrets: tuple[str, ...] = ()
    """What must be in no file, such as its key."""
    batches: bool = False
    """`chat_batch` takes all calls of a batch at once, as an engine in this process does; `chat` is not called then."""
    priced: bool = True
    """False where it is known beforehand that its answers have no price: a cap in US dollars is refused then."""

    @abstractmethod
    def chat(self, messages: Messages) -> LMResponse:
        """Raises ModelFailure for everything that is not an answer."""

    def chat_batch(self, message_batches: Sequence[Messages]) -> list[LMResponse | ModelFailure]:
        """An entry for each, in their order."""
        return [_or_failure(self.chat, messages) for messages in message_batches]

    def close(self) -> None:  # noqa: B027 - most backends have nothing to let go
        """Lets its connections go."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class ProviderHandler(ModelHandler):
    """A model behind an address, of any provider of the catalogue (`connected`)."""

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
        """`temperature` None: the API's own. `account`: whose calls they are in the budget's books; the model's name,
        if nothing else. `secrets`: the key, which must be in no log. Raises ConfigError for a number that makes no
        sense, and where the budget caps US dollars and the model's price is not known."""
        for name, value in (("max_tokens", max_tokens), ("timeout_s", timeout_s)):
            if value <= 0:
                raise ConfigError(f"{name} is {value:g}; give more than 0")
        if temperature is not None and not 0 <= temperature <= 2:
            raise ConfigError(f"the temperature is {temperature:g}; give 0 to 2")
        self.model, self.secrets = provider.model, tuple(one for one in secrets if one and one != NO_KEY)
        self._provider = provider if budget is None else provider.within(budget, account or provider.model)
        self._temperature, self._max_tokens, self._timeout_s = temperature, max_tokens, timeout_s
        self.priced = is_priced(provider.settings)

    @classmethod
    def connected(
        cls, settings: ModelSettings, providers_file: str = "", at: str = "supervisor", **options: Any
    ) -> Self:
        """From settings; `at` is their name in errors, `options` are as of the class. Raises ConfigError."""
        asked = endpoint_of(at, settings, catalogue(providers_file), at)
        key = key_of(at, asked, at=at)
        return cls(providers.connect(at, asked, key), secrets=(key,), **options)

    def chat(self, messages: Messages) -> LMResponse:
        """Raises ModelFailure, also where the model refuses."""
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
    """Any endpoint with OpenAI's chat completions, by its address: hosted ones, vLLM's server, llama.cpp, …"""

    def __init__(
        self,
        model: str,
        base_url: str,
        temperature: float | None = None,
        max_tokens: int = MAX_TOKENS,
        api_key: str | None = None,
        **options: Any,
    ) -> None:
        """`api_key` None: the variable that the catalogue of providers names for this address; an address on this
        machine needs none. `options` are as of ProviderHandler. Raises ConfigError without a key, and without the
        SDK."""
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
        """As OpenAIHandler; the address comes without /v1."""
        provider, key = _at_address("anthropic", model, base_url, api_key)
        super().__init__(provider, temperature=temperature, max_tokens=max_tokens, secrets=(key,), **options)


class VLLMHandler(ModelHandler):
    """A model in this process, by vLLM's engine, without a server. What its answers cost is not known."""

    batches = True
    priced = False

    def __init__(self, model: str, temperature: float = 1.0, max_tokens: int = MAX_TOKENS, **engine: Any) -> None:
        """`model`: a folder or a name of the hub. `engine`: arguments of `vllm.LLM`. Raises ConfigError where vLLM is
        not installed."""
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
        return self._answered([messages])[0]

    def chat_batch(self, message_batches: Sequence[Messages]) -> list[LMResponse | ModelFailure]:
        """All in one call of the engine, which batches them by itself."""
        return list(self._answered(message_batches))

    def _answered(self, message_batches: Sequence[Messages]) -> list[LMResponse]:
        started = time.perf_counter()
        with self._lock:  # the engine is for one thread at a time
            outputs = self._engine.chat([[dict(one) for one in batch] for batch in message_batches], self._sampling)
        elapsed = time.perf_counter() - started
        return [_of_engine(output, elapsed, self.model) for output in outputs]


def _of_engine(output: Any, elapsed: float, model: str) -> LMResponse:
    """`output`: vLLM's RequestOutput, whose prompt it may leave out."""
    said, prompt = output.outputs[0], output.prompt_token_ids
    usage = None if prompt is None else Usage(len(prompt), len(said.token_ids))
    return LMResponse(said.text, usage, elapsed, model, None, said.finish_reason or "other")


def checked_address(address: str, whose: str) -> str:
    """Without slashes at its end. Raises ConfigError for anything else, and for an address with a user, a password or a
    query, which it does not repeat: an address stands in settings and messages."""
    if re.search("[@?#]", address):
        raise ConfigError(f"the address of {whose} has a user, a password or a query; name its key's variable instead")
    try:
        host = urlsplit(address).hostname if re.fullmatch(r"https?://\S+", address) else None
    except ValueError:  # half an IPv6 address
        host = None
    if not host:
        raise ConfigError(f"the address of {whose} is {address!r}; give one like https://api.together.xyz/v1")
    return address.rstrip("/")


def _at_address(wire: Wire, model: str, base_url: str, api_key: str | None) -> tuple[RemoteModel, str]:
    known = catalogue()
    base_url = checked_address(base_url, model)
    named = [name for name, entry in known.items() if entry.wire == wire and entry.base_url.rstrip("/") == base_url]
    other = "claude" if wire == "anthropic" else "compatible"
    settings = ModelSettings(provider=named[0] if named else other, model=model, base_url="" if named else base_url)
    asked = endpoint_of(model, settings, known, "model")
    if api_key is None:
        if not asked.key_env and urlsplit(base_url).hostname not in LOOPBACK:
            raise ConfigError(f'no key for {base_url}: give api_key, e.g. os.environ["MY_SERVERS_KEY"]')
        api_key = key_of(model, asked, os.environ, "model") if asked.key_env else NO_KEY
    return providers.connect(model, asked, api_key), api_key


def _or_failure(chat: Callable[[Messages], LMResponse], messages: Messages) -> LMResponse | ModelFailure:
    try:
        return chat(messages)
    except ModelFailure as failure:
        return failure
