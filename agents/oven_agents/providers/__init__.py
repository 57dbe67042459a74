"""Thin adapters over the official SDKs, one a file. Those are imported on connecting, which takes a second or two."""

from __future__ import annotations

from oven_agents.providers.provider import EndpointProvider
from oven_agents.providers.terms import AgreedTerms
from oven_controller.errors import ConfigError
from oven_controller.settings.judge_providers import ModelEndpoint


def connect(name: str, asked: ModelEndpoint, key: str, top_logprobs: int = 0) -> EndpointProvider:
    """The adapter for a member's model. `top_logprobs`: alternatives a token that are wanted; 0: none. Raises
    ConfigError when the SDK is not installed."""
    terms = AgreedTerms(asked, top_logprobs)
    try:
        if asked.wire == "anthropic":
            from oven_agents.providers.anthropic import Anthropic

            return Anthropic(asked, terms, key)
        from oven_agents.providers.openai_compatible import OpenAI

        return OpenAI(asked, terms, key)
    except ImportError as error:
        raise ConfigError(
            f"committee member {name!r} needs the package {error.name}: pip install 'oven-controller[llm]'"
        ) from error
