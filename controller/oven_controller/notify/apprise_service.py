"""Chats, e-mail and others, by apprise (extra `notify`), which is imported when an address asks for it."""

from __future__ import annotations

import contextlib
import difflib
import logging
import threading
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from oven_controller.notify.message import Message
from oven_core.errors import ConfigError
from oven_runs.settings.notifications import WEBHOOK, Severity

if TYPE_CHECKING:
    import apprise

_TYPES: Final[dict[Severity, str]] = {"info": "info", "warning": "warning", "error": "failure"}
"""apprise's word for each severity."""
_LOUD: Final = "apprise"
"""Name of its logger."""


def service(url: str, name: str) -> apprise.NotifyBase:
    """What sends to `url`. Raises ConfigError where apprise is missing, does not know the scheme or does not take the
    address; the words hold nothing of it."""
    scheme = urlsplit(url).scheme.lower()
    try:
        library, known = _loaded()
    except ImportError:
        near = difflib.get_close_matches(scheme, WEBHOOK, n=1, cutoff=0.6)
        hint = f"did you mean {near[0]}://? Else " if near else ""
        raise ConfigError(
            f'{name}: {hint}{scheme}:// is sent to by apprise: `pip install "oven-controller[notify]"`'
        ) from None
    if scheme not in known:
        near = difflib.get_close_matches(scheme, known, n=3, cutoff=0.6)
        hint = f"did you mean {' or '.join(f'{one}://' for one in near)}?" if near else f"it has {len(known)} others"
        raise ConfigError(f"{name}: apprise sends to no {scheme}://; {hint}")
    # Redirects would take the message, and what is in the address, to where nobody sent it.
    asset = library.AppriseAsset(app_id="Oven Controller", http_redirects=False, async_mode=False)
    with _captured():
        found: apprise.NotifyBase | None = library.Apprise.instantiate(url, asset=asset, suppress_exceptions=True)
    if found is None:
        raise ConfigError(
            f"{name}: apprise does not take this {scheme}:// address: a part is missing or has another form; "
            "https://github.com/caronc/apprise/wiki shows each service's"
        )
    return found


def _loaded() -> tuple[ModuleType, list[str]]:
    """apprise with all its services, and the schemes that it and we know. Raises ImportError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of modules of Python's own that services import
        import apprise
        from apprise.manager_plugins import NotificationManager

        manager: Any = NotificationManager
        return apprise, sorted({*manager().schemas(), *WEBHOOK})


def open_host(service: Any) -> str:
    """The host that it sends to without TLS; empty where it sends with, or to this machine's own services."""
    scheme = urlsplit(service.url(privacy=True)).scheme
    plain = service.protocol or ()
    secure = service.secure_protocol
    if not secure or scheme not in ((plain,) if isinstance(plain, str) else plain):
        return ""
    return str(getattr(service, "smtp_host", "") or service.host or "")


def send(service: Any, message: Message) -> str:
    """Send it, within apprise's own time limits. Returns why it did not arrive; empty: it did. Never raises for what
    the service does."""
    import apprise

    with _captured() as said:
        try:
            done = service.notify(
                body=message.text,
                title=message.title,
                notify_type=apprise.NotifyType(_TYPES[message.notice.severity]),
                body_format=apprise.NotifyFormat.TEXT,
            )
        except Exception as error:  # a fault of a plug-in's is that address's affair
            return type(error).__name__
    return "" if done else (said[-1] if said else "it was not taken")


@contextlib.contextmanager
def _captured() -> Iterator[list[str]]:
    """What apprise logs meanwhile at WARNING and above goes here, and nowhere else: it may hold parts of an address."""
    said: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    log, handler, thread = logging.getLogger(_LOUD), Kept(logging.WARNING), threading.get_ident()
    handler.addFilter(lambda record: record.thread == thread)
    log.propagate = False
    log.addHandler(handler)
    try:
        yield said
    finally:
        log.removeHandler(handler)
