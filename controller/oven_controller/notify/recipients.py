"""Recipients of messages: settings with their secrets filled in, checked before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from oven_controller.notify import apprise_service, kept_addresses
from oven_core.errors import ConfigError
from oven_core.security import tls
from oven_runs.settings.notifications import (
    KEPT_PREFIX,
    VARIABLE_PREFIX,
    WEBHOOK,
    NotifySettings,
    RecipientSettings,
    is_reference,
    shown,
)

NATIVE: Final = ("hooks.slack.com", "discord.com", "discordapp.com")
"""Servers whose own webhooks take no JSON of ours: apprise knows what they take."""
LEAST_SECRET: Final = 6
"""Characters of a part of an address from which it may be a secret, and is not repeated in a message of an error."""


@dataclass(frozen=True)
class Recipient:
    """Where messages go, with its secrets. Its name is for logs and files, and holds none."""

    name: str
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    secret: str = field(default="", repr=False)
    """Signs each message; empty: none does."""
    service: Any = field(default=None, repr=False)
    """apprise's; None: a webhook."""

    def without_secrets(self, words: str) -> str:
        """What a server said, without what it may repeat of the address and the headers."""
        parts = urlsplit(self.url)
        whole = [self.url, parts.password or "", parts.query, *self.headers.values(), self.secret]
        pieces = [piece for text in (parts.path, parts.netloc, parts.query) for piece in _pieces(text)]
        for secret in sorted({*whole, *pieces}, key=len, reverse=True):
            if len(secret) >= LEAST_SECRET and secret != parts.hostname:
                words = words.replace(secret, "…")
        return words


def resolve(settings: NotifySettings, variables: Mapping[str, str], run: Path | None = None) -> list[Recipient]:
    """The recipients that the settings name. `run`: the run's folder, where there is one yet. Raises ConfigError: for
    what is missing, for an address of an unknown kind, and for one without TLS."""
    kept = kept_addresses.read(run) if run is not None else {}
    found: list[Recipient] = []
    for recipient in settings.to:
        name = _name(recipient, [one.name for one in found])
        url = _address(recipient, name, variables, kept)
        headers = {header: _value(variable, name, variables) for header, variable in recipient.headers.items()}
        secret = _value(recipient.sign_env, name, variables) if recipient.sign_env else ""
        service = None if _is_webhook(url) else apprise_service.service(url, name)
        if service is not None and (headers or secret):
            raise ConfigError(f"{name}: headers and sign_env are for webhooks, and this is none; leave them out")
        if any("\n" in value or "\r" in value for value in headers.values()):
            raise ConfigError(f"{name}: the value of a header has a line break; look at its environment variable")
        found.append(Recipient(name, url, headers, secret, service))
        if (host := _open_host(found[-1])) and not settings.plain:
            raise ConfigError(
                f"{name} has no TLS and {host} is another machine: anyone in between can read the messages and the "
                "address; use https:// (mailtos://, …), or say --set notify.plain=true"
            )
    return found


def warnings(recipients: Sequence[Recipient]) -> list[str]:
    """What to tell of recipients that were allowed all the same."""
    return [
        f"{one.name} has no TLS: anyone between here and {host} can read the messages and the address"
        for one in recipients
        if (host := _open_host(one))
    ]


def _name(recipient: RecipientSettings, taken: Sequence[str]) -> str:
    name = shown(recipient.url)
    if recipient.url.startswith(KEPT_PREFIX):
        name = recipient.url.partition(" ")[2] or recipient.url
    same = sum(other == name or other.startswith(f"{name} (") for other in taken)
    return f"{name} ({same + 1})" if same else name


def _address(recipient: RecipientSettings, name: str, variables: Mapping[str, str], kept: Mapping[str, str]) -> str:
    url = recipient.url
    if url.startswith(VARIABLE_PREFIX):
        url = _value(url.removeprefix(VARIABLE_PREFIX), name, variables)
    elif url.startswith(KEPT_PREFIX):
        number = url.removeprefix(KEPT_PREFIX).partition(" ")[0]
        if number not in kept:
            raise ConfigError(f"{name}: its address is not in the run's folder any more; name it again with --notify")
        return kept[number]
    if is_reference(url):
        raise ConfigError(f"{name}: the address that it leads to leads elsewhere again; write the address there")
    try:
        RecipientSettings(url=url)
    except ValueError:
        raise ConfigError(f"{name}: what it leads to is not an address such as https://… or slack://…") from None
    return url


def _value(variable: str, name: str, variables: Mapping[str, str]) -> str:
    value = variables.get(variable, "").strip()
    if not value:
        raise ConfigError(f"the environment variable {variable}, which notify.to ({name}) names, is not set")
    return value


def _is_webhook(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme.lower() in WEBHOOK and parts.hostname not in NATIVE


def _open_host(recipient: Recipient) -> str:
    """The other machine to which it would go without TLS; empty: none."""
    if recipient.service is not None:
        host = apprise_service.open_host(recipient.service)
    else:
        host = tls.host_of(recipient.url) if recipient.url.lower().startswith("http:") else ""
    return "" if not host or tls.is_loopback(host) else host


def _pieces(text: str) -> list[str]:
    for mark in "/?&=:@":
        text = text.replace(mark, " ")
    return [*text.split(), *unquote(text).split()]
