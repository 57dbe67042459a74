"""Thin adapters over the official SDKs, one a file. Those are imported on connecting, which takes a second or two."""

from __future__ import annotations

import os
from collections.abc import Mapping

from oven_agents.judges.providers.provider import Provider
from oven_controller.errors import ConfigError
from oven_controller.settings.model import MemberSettings

USUAL_KEY = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
NO_KEY = "none"
"""What one's own endpoint is sent where no key is named: the SDKs insist on some string."""


def key_of(name: str, settings: MemberSettings, environ: Mapping[str, str] = os.environ) -> str:
    """The member's key. Raises ConfigError that names the variable, never its value.

    The SDK's usual variable counts for the provider's own address only: a key does not go to another one unasked.
    """
    if not settings.key_env and settings.base_url:
        return NO_KEY
    variable = settings.key_env or USUAL_KEY[settings.api]
    key = environ.get(variable, "").strip()
    if not key:
        raise ConfigError(
            f"committee member {name!r} has no key: the environment variable {variable} is not set; "
            f"export it, or name another with committee.members.{name}.key_env"
        )
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ConfigError(
            f"committee member {name!r}: the environment variable {variable} holds characters that no key has "
            "(a space, a line break or something outside ASCII); set it again"
        )
    return key


def connect(name: str, settings: MemberSettings, key: str) -> Provider:
    """Raises ConfigError when the SDK is not installed."""
    try:
        if settings.api == "anthropic":
            from oven_agents.judges.providers.anthropic import Anthropic

            return Anthropic(settings.model, settings.base_url, key)
        from oven_agents.judges.providers.openai_compatible import OpenAI

        return OpenAI(settings.model, settings.base_url, key)
    except ImportError as error:
        raise ConfigError(
            f"committee member {name!r} needs the package {error.name}: pip install 'oven-controller[llm]'"
        ) from error
