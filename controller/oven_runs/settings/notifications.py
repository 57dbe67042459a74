"""Notification settings: the recipients, and the kinds and minimum severity of messages.

An address is secret, because anyone with a webhook's address can post to it. So dumps of these settings (config.json,
`config show`, dry runs) contain only the scheme and host. Errors name the setting without its value.
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal, TypeAlias, get_args
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_serializer, field_validator, model_validator

from oven_runs.settings.language_models import Variable

Kind: TypeAlias = Literal["advice", "applied", "rollback", "held", "died", "ended", "budget", "judge", "alert"]
"""The kind of event that a message reports."""
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
Severity: TypeAlias = Literal["info", "warning", "error"]
SEVERITIES: Final[tuple[Severity, ...]] = get_args(Severity)
"""Severities from the lowest to the highest."""
WEB_SCHEMES: Final = ("https", "http")
"""Schemes of webhooks. They get the message as JSON, unless the library apprise knows the server as a chat service."""
VARIABLE_PREFIX: Final = "env:"
"""Prefix of the name of an environment variable that contains the address."""
SAVED_PREFIX: Final = "saved:"
"""Prefix of the number of an address that is saved in the run's folder, readable only by its owner."""
_REFERENCE: Final = re.compile(rf"{VARIABLE_PREFIX}[A-Za-z_][A-Za-z0-9_]*|{SAVED_PREFIX}[1-9][0-9]*( .*)?")
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_OWN_HEADERS: Final = ("host", "content-length", "content-type")
"""Headers that every message sets itself."""


def is_reference(url: str) -> bool:
    """Whether `url` only refers to an address, as in "env:NAME" or "saved:1". A reference contains no secret."""
    return _REFERENCE.fullmatch(url) is not None


def safe_address(url: str) -> str:
    """Return the part of an address that is safe to show: a webhook's server, or a whole reference. For other services,
    return only the scheme, because the host may be a token."""
    if is_reference(url):
        return url
    scheme, _, rest = url.partition("://")
    if scheme.lower() not in WEB_SCHEMES:
        return f"{scheme}://…"
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return f"{scheme}://…"
    _, _, path = rest.rpartition("@")[2].partition("/")
    return f"{scheme}://{parts.hostname}{port}" + ("/…" if path or parts.query else "")


class RecipientSettings(BaseModel):
    """A recipient of messages. In a settings file, the address alone is enough."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str = Field(
        max_length=4096,
        repr=False,
        description="an address that apprise supports: slack://…, discord://…, mailtos://…; https://… gets the message "
        "as JSON; env:NAME: the address is in that environment variable",
    )
    headers: dict[str, Variable] = Field(
        default_factory=dict, description="for a webhook: header → environment variable with its value"
    )

    @field_validator("url")
    @classmethod
    def _check_address(cls, value: str) -> str:
        if is_reference(value):
            return value
        if value.startswith(VARIABLE_PREFIX):
            raise ValueError(f"write {VARIABLE_PREFIX}NAME, with the name of an environment variable")
        scheme, sep, rest = value.partition("://")
        if not sep or not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme) or re.search(r"[\s\x00-\x1f\x7f]", value):
            raise ValueError("it should be an address, e.g. https://…, slack://…, mailtos://…, or env:NAME")
        if scheme.lower() in WEB_SCHEMES:
            try:
                has_server = bool(urlsplit(value).hostname) and urlsplit(value).port != 0
            except ValueError:
                has_server = False
            if not has_server:
                raise ValueError(f"it should name a server, e.g. {scheme}://hooks.example/oven")
        elif not rest:
            raise ValueError(f"{scheme}:// alone is not an address; apprise's list of services shows the rest of it")
        return value

    @field_validator("headers")
    @classmethod
    def _check_headers(cls, value: dict[str, str]) -> dict[str, str]:
        for name, variable in value.items():
            if not _HEADER.fullmatch(name):
                raise ValueError("a header's name must consist of letters, digits and hyphens, e.g. Authorization")
            if name.lower() in _OWN_HEADERS:
                raise ValueError(f"every message sets the header {name} itself; remove it")
            if not variable:
                raise ValueError(f"the header {name} needs the name of an environment variable")
        return value

    @model_validator(mode="after")
    def _check_scheme(self) -> RecipientSettings:
        if self.headers and not is_reference(self.url):
            scheme = self.url.partition("://")[0].lower()
            if scheme not in WEB_SCHEMES:
                raise ValueError(f"`headers` is for webhooks, and {scheme}:// is not one; remove it")
        return self

    @field_serializer("url")
    def _serialize_url(self, url: str) -> str:
        return safe_address(url)


class NotifySettings(BaseModel):
    """Settings for a run's messages and their recipients."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    to: tuple[RecipientSettings, ...] = Field(
        default=(), max_length=16, description="addresses, or {url: …, headers: {NAME: VARIABLE}}"
    )
    on: tuple[Kind, ...] = Field(
        default=KINDS,
        description="advice: advice waits for a person, or is about to lapse; applied: a change took effect or failed; "
        "rollback; held; died: the learner failed or stopped responding; ended; budget: a budget is used up; "
        "judge: a judge is unavailable; alert: an agent raised or cleared a symptom",
    )
    severity: Severity = Field(default="info", description="lowest severity to send")
    allow_plaintext: bool = Field(
        default=False,
        description="allow connections to other machines without TLS, although others could read the messages",
    )

    @field_validator("to", mode="before")
    @classmethod
    def _wrap_addresses(cls, value: Any) -> Any:
        entries = [value] if isinstance(value, str | dict) else value
        if not isinstance(entries, list | tuple):
            return entries
        return [{"url": entry} if isinstance(entry, str) else entry for entry in entries]

    @field_validator("on", mode="before")
    @classmethod
    def _split_kinds(cls, value: Any) -> Any:
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value
