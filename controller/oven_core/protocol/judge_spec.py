"""The description of a committee member's model in the log and in requests. It never contains an API key."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

PREFIX: Final = "committee."
"""Prefix of the actuators of the committee's remote members: `committee.<member>`."""
OFF: Final = "off"
"""The choice of `committee.<member>` that mutes the member."""
MAX_TOP_LOGPROBS: Final = 20
"""Maximum number of alternatives per token. OpenAI and DeepSeek refuse a higher number."""


class JudgeSpec(BaseModel):
    """A model behind an API. The member's process reads the API key from an environment variable."""

    model_config = ConfigDict(frozen=True, defer_build=True, extra="ignore")

    provider: str = Field(min_length=1, max_length=64, description="the provider, as in the settings of members")
    model: str = Field(min_length=1, max_length=200, description="name of the model at the provider")
    base_url: str = Field(
        default="",
        max_length=500,
        pattern="^$|^https?://",
        description="address of the API; empty: the provider's default",
    )
    key_env: str = Field(
        default="",
        max_length=128,
        pattern="^$|^[A-Za-z_][A-Za-z0-9_]*$",
        description="environment variable with the API key; empty: the provider's default",
    )
    logprobs: bool = Field(default=False, description="whether to request log-probabilities of tokens")
    top_logprobs: int = Field(default=5, ge=1, le=MAX_TOP_LOGPROBS, description="alternatives per token, if `logprobs`")

    @field_validator("base_url")
    @classmethod
    def _check_no_secrets(cls, value: str) -> str:
        parts = urlsplit(value)
        if "@" in parts.netloc or parts.query:
            raise ValueError(
                "the address contains a user, a password or a query, which would end up in the log; put the key into "
                "the environment variable that key_env names"
            )
        return value

    @property
    def identity(self) -> str:
        """The value of `committee.<member>` while this model judges. It includes everything that affects scores."""
        address = urlsplit(self.base_url)
        host = f"@{address.netloc}{address.path.rstrip('/')}" if self.base_url else ""
        logprobs = f"+logprobs={self.top_logprobs}" if self.logprobs else ""
        return f"{self.provider}/{self.model}{host}{logprobs}"


def actuator_of(member: str) -> str:
    """Return the actuator that sets the model of this member."""
    return PREFIX + member


def member_of(actuator: str) -> str:
    """Return the member whose model this actuator sets, or an empty string for any other actuator."""
    return actuator.removeprefix(PREFIX) if actuator.startswith(PREFIX) else ""
