"""Settings of notifications: to whom messages go, about what, and from which severity on.

An address is a secret: anyone who has a webhook's can post to it. So a dump of these settings (config.json, `config
show`, a dry run) has its scheme and host and no more, and an error names the setting and not the value.
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal, TypeAlias, get_args
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_serializer, field_validator, model_validator

from oven_core.errors import UnknownNameError
from oven_runs.settings.variable_name import Variable

Kind: TypeAlias = Literal["advice", "applied", "rollback", "held", "died", "ended", "budget", "judge", "alert"]
"""What a message is about."""
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
Severity: TypeAlias = Literal["info", "warning", "error"]
SEVERITIES: Final[tuple[Severity, ...]] = get_args(Severity)
"""The least first."""
WEB_SCHEMES: Final = ("https", "http")
"""Schemes of webhooks, which get the message as JSON, unless apprise knows the server as a chat's."""
VARIABLE_PREFIX: Final = "env:"
"""Before the name of the environment variable that has the address."""
SAVED_PREFIX: Final = "saved:"
"""Before the number of an address that is in the run's folder, in a file that its owner alone can read."""
_REFERENCE: Final = re.compile(rf"{VARIABLE_PREFIX}[A-Za-z_][A-Za-z0-9_]*|{SAVED_PREFIX}[1-9][0-9]*( .*)?")
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_OWN_HEADERS: Final = ("host", "content-length", "content-type")
"""Which a message sets itself."""


def is_reference(url: str) -> bool:
    """Whether it says where the address is, and holds no secret itself."""
    return _REFERENCE.fullmatch(url) is not None


def shown(url: str) -> str:
    """The address as it may be shown: a webhook's server; of any other service the scheme, for a token may stand where
    a host would; a reference as it is."""
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
    beyond = rest.rpartition("@")[2].partition("/")[2] or parts.query
    return f"{scheme}://{parts.hostname}{port}" + ("/…" if beyond else "")


class RecipientSettings(BaseModel):
    """Where messages go. A settings file may give the address alone."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str = Field(
        max_length=4096,
        repr=False,
        description="an address that apprise supports: slack://…, discord://…, mailtos://…; https://… gets the message "
        "as JSON; env:NAME: the address is in that environment variable",
    )
    headers: dict[str, Variable] = Field(
        default_factory=dict, description="of a webhook: header → environment variable with its value"
    )

    @field_validator("url")
    @classmethod
    def _is_address(cls, value: str) -> str:
        if is_reference(value):
            return value
        if value.startswith(VARIABLE_PREFIX):
            raise ValueError(f"write {VARIABLE_PREFIX}NAME, with the name of an environment variable")
        scheme, mark, rest = value.partition("://")
        if not mark or not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme) or re.search(r"[\s\x00-\x1f\x7f]", value):
            raise ValueError("it should be an address, e.g. https://…, slack://…, mailtos://…, or env:NAME")
        if scheme.lower() in WEB_SCHEMES:
            try:
                named = bool(urlsplit(value).hostname) and urlsplit(value).port != 0
            except ValueError:
                named = False
            if not named:
                raise ValueError(f"it should name a server, e.g. {scheme}://hooks.example/oven")
        elif not rest:
            raise ValueError(f"{scheme}:// alone is not an address; what follows it is in apprise's list of services")
        return value

    @field_validator("headers")
    @classmethod
    def _are_headers(cls, value: dict[str, str]) -> dict[str, str]:
        for name, variable in value.items():
            if not _HEADER.fullmatch(name):
                raise ValueError("a header's name has letters, digits and hyphens, e.g. Authorization")
            if name.lower() in _OWN_HEADERS:
                raise ValueError(f"the header {name} is set by each message itself; leave it out")
            if not variable:
                raise ValueError(f"the header {name} needs the name of an environment variable")
        return value

    @model_validator(mode="after")
    def _fits_its_scheme(self) -> RecipientSettings:
        if self.headers and not is_reference(self.url):
            scheme = self.url.partition("://")[0].lower()
            if scheme not in WEB_SCHEMES:
                raise ValueError(f"`headers` is for webhooks, and {scheme}:// is not one; remove it")
        return self

    @field_serializer("url")
    def _without_secret(self, url: str) -> str:
        return shown(url)


class NotifySettings(BaseModel):
    """Whom a run calls, about what."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    to: tuple[RecipientSettings, ...] = Field(
        default=(), max_length=16, description="addresses, or {url: …, headers: {NAME: VARIABLE}}"
    )
    on: tuple[Kind, ...] = Field(
        default=KINDS,
        description="advice: it waits for a person (again before it lapses); applied: a change took effect, or failed "
        "to; rollback; held; died: the learner failed, or said nothing more; ended; budget: one is spent; judge: one "
        "is away; alert: an agent sees a symptom, or sees it no more",
    )
    severity: Severity = Field(default="info", description="the least severe that is sent")
    plain: bool = Field(default=False, description="also to other machines without TLS, where others can read along")

    @field_validator("to", mode="before")
    @classmethod
    def _addresses(cls, value: Any) -> Any:
        given = [value] if isinstance(value, str | dict) else value
        if not isinstance(given, list | tuple):
            return given
        return [{"url": one} if isinstance(one, str) else one for one in given]

    @field_validator("on", mode="before")
    @classmethod
    def _kinds(cls, value: Any) -> Any:
        given = [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value
        for kind in given if isinstance(given, list | tuple) else ():
            if isinstance(kind, str) and kind not in KINDS:
                raise ValueError(str(UnknownNameError("kind of message", kind, KINDS)))
        return given
