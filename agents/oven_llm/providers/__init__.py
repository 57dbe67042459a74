"""Calls language models through their official SDKs, with one conversation type and one budget for all callers.

    conversation.py       requests and replies, and the protocol `LanguageModel`
    remote_model.py       a model at an address, with features, timeouts and a budget
    anthropic.py, openai_compatible.py    clients for the two APIs; sdk_client.py contains their common code
    optional_features.py  negotiation of JSON schemas and log-probabilities with an endpoint
    usage.py, budget.py   tokens and their prices, and caps on spending
    loop_thread.py        an event loop for synchronous callers
    failures.py           kinds of failure
    structured_reply.py   parser for JSON replies
    genai_telemetry.py    a span for each call

An SDK is imported when a model is connected, which takes one or two seconds."""

from __future__ import annotations

from oven_core.errors import ConfigError
from oven_llm.providers.budget import Budget
from oven_llm.providers.optional_features import AgreedTerms
from oven_llm.providers.remote_model import ModelApi, RemoteModel
from oven_runs.settings.judge_providers import ModelEndpoint


def connect(
    name: str, endpoint: ModelEndpoint, key: str, top_logprobs: int = 0, budget: Budget | None = None, account: str = ""
) -> RemoteModel:
    """Connect to a model on behalf of `name`, without sending a request. Requests will ask for `top_logprobs`
    alternatives per token. Calls will be charged to `account` in `budget`. Raises ConfigError if the SDK is not
    installed, or if the budget is capped in US dollars and the model's price is unknown."""
    api: ModelApi
    try:
        if endpoint.wire == "anthropic":
            from oven_llm.providers.anthropic import AnthropicMessages

            api = AnthropicMessages(endpoint, key)
        else:
            from oven_llm.providers.openai_compatible import ChatCompletions

            api = ChatCompletions(endpoint, key)
    except ImportError as error:
        raise ConfigError(f"{name!r} requires the package {error.name}: pip install 'oven-controller[llm]'") from error
    return RemoteModel(api, endpoint, AgreedTerms(endpoint, top_logprobs), budget, account)
