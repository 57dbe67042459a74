"""Specification of a committee member's model, for the log, score requests and probes. It never contains an API key."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

PREFIX: Final = "committee."
"""Prefix of the actuators of the committee's remote members: `committee.<member>`."""
OFF: Final = "off"
"""The choice of `committee.<member>` that mutes the member."""
TOP_LOGPROBS: Final = 20
"""Largest number of alternatives per token. OpenAI and DeepSeek refuse more."""


class JudgeSpec(BaseModel):
    """A model behind an API, with the name of the environment variable that has its key in the member's process."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    provider: str = Field(min_length=1, max_length=64, description="as in the settings of members")
    model: str = Field(min_length=1, max_length=200, description="the model's name there")
    base_url: str = Field(
        default="", max_length=500, pattern="^$|^https?://", description="empty: the provider's own address"
    )
    key_env: str = Field(
        default="",
        max_length=128,
        pattern="^$|^[A-Za-z_][A-Za-z0-9_]*$",
        description="environment variable with the key; empty: the provider's usual one",
    )
    logprobs: bool = Field(default=False, description="request its tokens' log-probabilities")
    top_logprobs: int = Field(default=5, ge=1, le=TOP_LOGPROBS, description="alternatives per token, with logprobs")

    @field_validator("base_url")
    @classmethod
    def _without_secrets(cls, value: str) -> str:
        parts = urlsplit(value)
        if "@" in parts.netloc or parts.query:
            raise ValueError(
                "the address holds a user, a password or a query, which would be in the log; a key belongs into the "
                "variable that key_env names"
            )
        return value

    @property
    def identity(self) -> str:
        """The value of `committee.<member>` while this model judges. It has everything that affects scores, so not the
        key."""
        address = urlsplit(self.base_url)
        host = f"@{address.netloc}{address.path.rstrip('/')}" if self.base_url else ""
        logprobs = f"+logprobs={self.top_logprobs}" if self.logprobs else ""
        return f"{self.provider}/{self.model}{host}{logprobs}"


def actuator_of(member: str) -> str:
    """Return the actuator that sets the model of this member."""
    return PREFIX + member


def member_of(actuator: str) -> str:
    """Return the member of such an actuator; empty for any other actuator."""
    return actuator.removeprefix(PREFIX) if actuator.startswith(PREFIX) else ""
