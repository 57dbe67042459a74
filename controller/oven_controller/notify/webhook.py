"""A message POSTed as JSON, within limits: time, redirects, and how much of an answer is read.

Signed by standardwebhooks.com where a secret is set: `webhook-signature` is `v1,` and the base64 of HMAC-SHA256 over
`id.timestamp.body`, so that a receiver can check who sent it, and when.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
import http.client
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit

from oven_controller.notify.message import Message
from oven_controller.notify.recipients import Recipient
from oven_core.errors import reason
from oven_core.terminal_text import clean

ANSWER_S: Final = 10.0
"""Seconds that a server may say nothing."""
BODY_BYTES: Final = 2048
"""Of an answer, at most: it is only for a line of the log."""
SAID: Final = 160
"""Characters of an error's answer in that line."""
REDIRECTS: Final = 3
"""That are followed, on the same server."""
_SECRET_PREFIX: Final = "whsec_"


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of an attempt."""

    failure: str = ""
    """Why it did not arrive, without secrets; empty: it did."""
    rest_s: float = 0.0
    """How long the server asks to be left alone (Retry-After, in seconds)."""
    said: str = ""
    """The status, of one that arrived."""


class _Unfollowed(urllib.request.HTTPRedirectHandler):
    """A redirect is an answer: who may have the message is decided here, and its method stays POST."""

    def redirect_request(self, *_: Any) -> None:
        return None


def post(recipient: Recipient, message: Message, sent_at: float) -> Answer:
    """POST it. `sent_at`: seconds since 1970. Never raises for what the server, the network or a proxy does."""
    body = message.model_dump_json().encode()
    url, basic = _without_password(recipient.url)
    headers = {
        "Content-Type": "application/json; charset=utf-8",
        "User-Agent": "oven-controller",
        **basic,
        **recipient.headers,
        **signed(recipient.secret, message.id, sent_at, body),
    }
    for _ in range(1 + REDIRECTS):
        answer, onwards = _once(recipient, url, headers, body)
        if not onwards:
            return answer
        url = onwards
    return Answer(f"{REDIRECTS} redirects did not end")


def signed(secret: str, message_id: str, sent_at: float, body: bytes) -> dict[str, str]:
    """The headers by which a receiver knows the message; with a signature where there is a secret."""
    headers = {"webhook-id": _ascii(message_id), "webhook-timestamp": str(int(sent_at))}
    if not secret:
        return headers
    key = secret.encode()
    if secret.startswith(_SECRET_PREFIX):
        with contextlib.suppress(binascii.Error, ValueError):
            key = base64.b64decode(secret.removeprefix(_SECRET_PREFIX), validate=True)
    said = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    mark = base64.b64encode(hmac.new(key, said, hashlib.sha256).digest()).decode()
    return headers | {"webhook-signature": f"v1,{mark}"}


def _once(recipient: Recipient, url: str, headers: Mapping[str, str], body: bytes) -> tuple[Answer, str]:
    """The result, or the address on the same server to which it is to go."""
    request = urllib.request.Request(url, data=body, headers=dict(headers), method="POST")
    try:
        with urllib.request.build_opener(_Unfollowed).open(request, timeout=ANSWER_S) as reply:
            return Answer(said=f"{reply.status} {reply.reason}".strip()), ""
    except urllib.error.HTTPError as error:
        with error:
            return _refused(recipient, url, error)
    except urllib.error.URLError as error:
        cause = error.reason if isinstance(error.reason, BaseException) else error
        return Answer(recipient.without_secrets(clean(_why(cause)))), ""
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Answer(recipient.without_secrets(clean(_why(error)))), ""


def _refused(recipient: Recipient, url: str, error: urllib.error.HTTPError) -> tuple[Answer, str]:
    if 300 <= error.code < 400:
        onwards = urljoin(url, error.headers.get("Location") or "")
        here, there = urlsplit(url), urlsplit(onwards)
        if error.code in (307, 308) and (here.scheme, here.netloc) == (there.scheme, there.netloc) and onwards != url:
            return Answer(), onwards
        where = there.hostname or "nowhere"
        if (here.scheme, here.netloc) != (there.scheme, there.netloc):
            said = f"it redirects to {where} ({there.scheme}), and messages are not sent on to other servers"
            return Answer(f"{error.code}: {clean(said)}; name that address if it is yours"), ""
        return Answer(f"{error.code}: it redirects to another address of its own, which takes no POST"), ""
    read = b""
    with contextlib.suppress(OSError, http.client.HTTPException):
        read = error.read(BODY_BYTES)
    said = " ".join(clean(recipient.without_secrets(read.decode(errors="replace"))).split())[:SAID]
    rest = error.headers.get("Retry-After", "")
    told = f"{error.code} {clean(str(error.reason))}".strip() + (f": {said}" if said else "")
    return Answer(recipient.without_secrets(told), float(rest) if rest.isdecimal() else 0.0), ""


def _without_password(url: str) -> tuple[str, dict[str, str]]:
    """The address without its user and password, and the header that says them."""
    parts = urlsplit(url)
    user, mark, server = parts.netloc.rpartition("@")
    if not mark:
        return url, {}
    name, _, password = user.partition(":")
    both = base64.b64encode(f"{unquote(name)}:{unquote(password)}".encode()).decode()
    return urlunsplit(parts._replace(netloc=server)), {"Authorization": f"Basic {both}"}


def _why(error: BaseException) -> str:
    return (
        "no answer in time"
        if isinstance(error, TimeoutError)
        else reason(error)
        if isinstance(error, Exception)
        else ""
    )


def _ascii(text: str) -> str:
    return "".join(sign for sign in text if sign.isascii() and sign.isprintable())[:200]
