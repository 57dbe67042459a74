"""Recipients of messages: their addresses, and the apprise services that send to them. The extra `notify` installs
`apprise`. It is imported only if a run has recipients."""

from __future__ import annotations

import contextlib
import difflib
import logging
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from oven_controller.notify import saved_addresses
from oven_controller.notify.message import Message
from oven_core.errors import ConfigError
from oven_core.security import tls
from oven_core.terminal_text import clean
from oven_runs.settings.notifications import (
    SAVED_PREFIX,
    VARIABLE_PREFIX,
    WEB_SCHEMES,
    NotifySettings,
    RecipientSettings,
    is_reference,
    safe_address,
)

MIN_SECRET_CHARACTERS: Final = 6
"""Minimum length of the parts of an address that are treated as secrets and removed from error messages."""
_APPRISE_TYPES: Final = {"info": "info", "warning": "warning", "error": "failure"}
"""Apprise's message type for each severity."""


@dataclass(frozen=True)
class Recipient:
    """A recipient with its address, which may contain secrets. Its name, for logs and files, contains none."""

    name: str
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    service: Any = field(default=None, repr=False)
    """An apprise.NotifyBase."""

    def send(self, message: Message) -> str:
        """Send a message within apprise's time limits. Return an empty string, or why it failed, without secrets."""
        import apprise

        if hasattr(self.service, "payload_extras"):  # only the service for webhooks has this attribute
            self.service.payload_extras = message.fields
        with _capture_log() as lines:
            try:
                succeeded = self.service.notify(
                    body=message.text,
                    title=message.title,
                    notify_type=apprise.NotifyType(_APPRISE_TYPES[message.notice.severity]),
                    body_format=apprise.NotifyFormat.TEXT,
                )
            except Exception as error:  # a bug in one plug-in must not stop messages to other recipients
                return type(error).__name__
        if succeeded:
            return ""
        return self.without_secrets(clean(lines[-1] if lines else "the service rejected the message"))

    def without_secrets(self, text: str) -> str:
        """Replace every part of the address and the headers that may be secret with "…"."""
        url = urlsplit(self.url)
        possible_secrets = {self.url, url.query, *self.headers.values(), *_address_parts(self.url)}
        possible_secrets.update(_address_parts(unquote(self.url)))
        for secret in sorted(possible_secrets, key=len, reverse=True):
            if len(secret) >= MIN_SECRET_CHARACTERS and secret != url.hostname:
                text = text.replace(secret, "…")
        return text


def resolve_recipients(
    settings: NotifySettings, variables: Mapping[str, str], run_folder: Path | None = None
) -> list[Recipient]:
    """Return the recipients in the settings. `run_folder` contains their saved addresses, if there are any.

    Raises ConfigError if an environment variable is not set, apprise does not accept an address, or the connection to
    another machine would not be encrypted.
    """
    saved_urls = saved_addresses.read(run_folder) if run_folder is not None else {}
    recipients: list[Recipient] = []
    for entry in settings.to:
        name = _unique_name(entry, [recipient.name for recipient in recipients])
        url = _resolve_address(entry.url, name, variables, saved_urls)
        headers = {header: _read_variable(variable, name, variables) for header, variable in entry.headers.items()}
        if any("\n" in value or "\r" in value for value in headers.values()):
            raise ConfigError(f"{name}: the value of a header contains a line break; check its environment variable")
        recipients.append(Recipient(name, url, headers, _create_service(url, headers, name)))
        if (warning := _tls_warning(recipients[-1])) and not settings.allow_plaintext:
            raise ConfigError(f"{warning}; use https:// (mailtos://, …), or pass --set notify.allow_plaintext=true")
    return recipients


def tls_warnings(recipients: Sequence[Recipient]) -> list[str]:
    """Return a warning for each recipient on another machine whose connection does not use TLS."""
    return [warning for recipient in recipients if (warning := _tls_warning(recipient))]


def _tls_warning(recipient: Recipient) -> str:
    if not (host := _host_without_tls(recipient)):
        return ""
    return f"{recipient.name} does not use TLS, so anyone between here and {host} can read the messages and the address"


def _unique_name(entry: RecipientSettings, earlier: Sequence[str]) -> str:
    name = safe_address(entry.url)
    if entry.url.startswith(SAVED_PREFIX):
        name = entry.url.partition(" ")[2] or entry.url
    duplicates = sum(earlier_name == name or earlier_name.startswith(f"{name} (") for earlier_name in earlier)
    return f"{name} ({duplicates + 1})" if duplicates else name


def _resolve_address(url: str, name: str, variables: Mapping[str, str], saved_urls: Mapping[str, str]) -> str:
    if url.startswith(SAVED_PREFIX):
        number = url.removeprefix(SAVED_PREFIX).partition(" ")[0]
        if number not in saved_urls:
            raise ConfigError(f"{name}: its address is missing from the run's folder; pass it again with --notify")
        return saved_urls[number]
    if not url.startswith(VARIABLE_PREFIX):
        return url
    address = _read_variable(url.removeprefix(VARIABLE_PREFIX), name, variables)
    if is_reference(address):
        raise ConfigError(f"{name}: the variable contains another reference; it should contain the address itself")
    try:
        return RecipientSettings(url=address).url
    except ValueError:
        raise ConfigError(f"{name}: the variable does not contain an address such as https://… or slack://…") from None


def _read_variable(variable: str, name: str, variables: Mapping[str, str]) -> str:
    value = variables.get(variable, "").strip()
    if not value:
        raise ConfigError(f"notify.to ({name}) needs the environment variable {variable}, but it is not set")
    return value


def _create_service(url: str, headers: Mapping[str, str], name: str) -> Any:
    """Return the apprise service for an address. Errors contain only the address's scheme."""
    scheme = urlsplit(url).scheme.lower()
    try:
        apprise, schemes = _load_apprise()
    except ImportError:
        raise ConfigError(f'{name}: sending needs apprise; run `pip install "oven-controller[notify]"`') from None
    if scheme not in schemes:
        matches = [f"{match}://" for match in difflib.get_close_matches(scheme, schemes, n=3, cutoff=0.6)]
        hint = f"did you mean {' or '.join(matches)}?" if matches else f"it supports {len(schemes)} other schemes"
        raise ConfigError(f"{name}: apprise does not support {scheme}://; {hint}")
    # A redirect would send the message, and the secret in the address, to an address that the user did not choose.
    asset = apprise.AppriseAsset(app_id="Oven Controller", http_redirects=False, async_mode=False)
    with _capture_log():
        service = apprise.Apprise.instantiate(url, asset=asset)
        # Apprise recognises the web addresses of chats such as Slack. Any other web address is a webhook.
        is_webhook = scheme in WEB_SCHEMES and service is None
        if is_webhook:
            service = apprise.Apprise.instantiate(_webhook_arguments(url, headers), asset=asset)
    if service is None:
        raise ConfigError(
            f"{name}: apprise does not accept this {scheme}:// address because a part is missing or malformed; see "
            "https://github.com/caronc/apprise/wiki for the format of each service's addresses"
        )
    if headers and not is_webhook:
        raise ConfigError(f"{name}: `headers` only works with webhooks, and this is not one; remove it")
    return service


def _webhook_arguments(url: str, headers: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments of apprise's json:// and jsons:// services for a web address."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return {
        "schema": "jsons" if parts.scheme.lower() == "https" else "json",
        "host": f"[{host}]" if ":" in host else host,
        "port": parts.port,
        "user": unquote(parts.username) if parts.username else None,
        "password": unquote(parts.password or ""),
        "fullpath": parts.path,
        "params": dict(parse_qsl(parts.query, keep_blank_values=True)),
        "headers": dict(headers),
    }


def _load_apprise() -> tuple[ModuleType, list[str]]:
    """Load apprise with all its services. Return the module and the accepted address schemes. Raises ImportError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from standard modules that some services import
        import apprise
        from apprise.manager_plugins import NotificationManager

        manager: Any = NotificationManager
        return apprise, sorted({*manager().schemas(), *WEB_SCHEMES})


def _host_without_tls(recipient: Recipient) -> str:
    """Return the remote host that would receive messages unencrypted, or an empty string if there is none."""
    service = recipient.service
    scheme = urlsplit(service.url(privacy=True)).scheme
    plain_schemes = (service.protocol,) if isinstance(service.protocol, str) else (service.protocol or ())
    if not service.secure_protocol or scheme not in plain_schemes:
        return ""
    host = str(getattr(service, "smtp_host", "") or service.host or "")
    return "" if not host or tls.is_loopback(host) else host


@contextlib.contextmanager
def _capture_log() -> Iterator[list[str]]:
    """Collect this thread's warnings from apprise, and keep them out of all logs because they may contain secrets."""
    lines: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logger, handler, thread = logging.getLogger("apprise"), Collector(logging.WARNING), threading.get_ident()
    handler.addFilter(lambda record: record.thread == thread)
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


def _address_parts(address: str) -> list[str]:
    for separator in "/?&=:@":
        address = address.replace(separator, " ")
    return address.split()
