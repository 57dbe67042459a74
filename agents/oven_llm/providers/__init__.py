"""Calls language models through their official SDKs, with one conversation type and one budget for all callers.

    conversation.py       messages in, replies out; the protocol `LanguageModel`
    remote_model.py       a model at an address: features, timeouts and the budget
    anthropic.py, openai_compatible.py    the two APIs; sdk_client.py has what their SDKs share
    optional_features.py  the schema and log-probabilities, as far as the endpoint supports them
    usage.py, budget.py   tokens and prices; caps over a ledger of spending
    failures.py           kinds of failure; structured_reply.py reads JSON replies
    genai_telemetry.py    a span for each call

SDKs are imported when a model is connected, which takes a second or two.
"""

from __future__ import annotations

from oven_core.errors import ConfigError
from oven_llm.providers.budget import Budget
from oven_llm.providers.optional_features import AgreedTerms
from oven_llm.providers.remote_model import ModelApi, RemoteModel
from oven_runs.settings.judge_providers import ModelEndpoint


def connect(
    name: str,
    endpoint: ModelEndpoint,
    key: str,
    top_logprobs: int = 0,
    budget: Budget | None = None,
    account: str = "",
) -> RemoteModel:
    """Connect to a model on behalf of `name`. `top_logprobs`: alternatives per token to request; 0: none. `budget` and
    `account`: what its calls are charged to. Raises ConfigError if the SDK is not installed, or if the budget caps US
    dollars and the model's price is unknown."""
    api: ModelApi
    try:
        if endpoint.wire == "anthropic":
            from oven_llm.providers.anthropic import AnthropicMessages

            api = AnthropicMessages(endpoint, key)
        else:
            from oven_llm.providers.openai_compatible import ChatCompletions

            api = ChatCompletions(endpoint, key)
    except ImportError as error:
        raise ConfigError(f"{name!r} needs the package {error.name}: pip install 'oven-controller[llm]'") from error
    return RemoteModel(api, endpoint, AgreedTerms(endpoint, top_logprobs), budget, account)
