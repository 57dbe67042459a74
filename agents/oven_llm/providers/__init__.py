"""Language models by their APIs: thin adapters over the official SDKs, which judges, supervisors and teachers share.

    conversation.py   messages, tools and samples, in no API's form    provider.py   a judge's question and answer
    sampling.py       n samples, drawn together or one by one          terms.py      formats, as far as they are taken
    *_conversation.py the same as each API has it                      sdk_client.py HTTP, retries, failures by kind
    usage.py          what a request met on its way, and its price     failures.py   the kinds
    metered.py        room for a call before it, its cost after it     budget.py     caps over all calls of a program

SDKs are imported on connecting, which takes a second or two.
"""

from __future__ import annotations

from oven_core.errors import ConfigError
from oven_llm.providers.provider import EndpointProvider
from oven_llm.providers.terms import AgreedTerms
from oven_runs.settings.judge_providers import ModelEndpoint


def connect(name: str, asked: ModelEndpoint, key: str, top_logprobs: int = 0) -> EndpointProvider:
    """The adapter for a model, which `name` asks. `top_logprobs`: alternatives a token that are wanted; 0: none. Raises
    ConfigError when the SDK is not installed."""
    terms = AgreedTerms(asked, top_logprobs)
    try:
        if asked.wire == "anthropic":
            from oven_llm.providers.anthropic import Anthropic

            return Anthropic(asked, terms, key)
        from oven_llm.providers.openai_compatible import OpenAI

        return OpenAI(asked, terms, key)
    except ImportError as error:
        raise ConfigError(f"{name!r} needs the package {error.name}: pip install 'oven-controller[llm]'") from error
