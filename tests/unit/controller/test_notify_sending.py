"""Messages sent by apprise to a real server: what arrives, and what a failure says, without secrets."""

from __future__ import annotations

import base64
import logging
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.webhook_server import Reply, WebhookServer

from oven_controller.notify.message import Message, Notice
from oven_controller.notify.notifier import Delivery
from oven_controller.notify.outbox import Outbox
from oven_controller.notify.recipients import resolve_recipients
from oven_runs.settings.notifications import NotifySettings

PASSWORD, TOKEN, PATH = "pa55word", "token-0123456789", "path-0123456789"
HELD = Notice(
    key="held-7", kind="held", severity="warning", step=3, title="the run is held",
    text="The run is held at step 3: näher ansehen.", command="oven-controller resume r",
)  # fmt: skip


@pytest.fixture(autouse=True)
def propagating_logger() -> Iterator[None]:
    """Else pytest attaches its handler to apprise's logger itself, which no user's program does."""
    logging.getLogger("apprise").propagate = True
    yield
    logging.getLogger("apprise").propagate = True


def post(url: str, caplog: pytest.LogCaptureFixture) -> str:
    settings = NotifySettings.model_validate({"to": [{"url": url, "headers": {"X-Token": "TOKEN"}}]})
    (recipient,) = resolve_recipients(settings, {"TOKEN": TOKEN})
    failure = recipient.send(Message("r", [HELD]))
    assert not any(secret in failure + caplog.text for secret in (PASSWORD, TOKEN, PATH))
    return failure


def test_a_webhook_gets_title_text_and_fields_with_headers_query_and_password(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with WebhookServer() as server:
        url = server.url.replace("//", f"//ann:{PASSWORD}@") + f"/{PATH}/a%20b?key=va%2Bl&method=GET"
        assert post(url, caplog) == ""
    (request,) = server.posted
    assert request.path == f"/{PATH}/a%20b?key=va%2Bl&method=GET"
    assert request.headers["x-token"] == TOKEN and request.headers["content-type"] == "application/json"
    assert request.headers["authorization"] == "Basic " + base64.b64encode(f"ann:{PASSWORD}".encode()).decode()
    body = request.json
    assert (body["title"], body["type"]) == ("r: the run is held", "warning")
    assert body["message"] == "The run is held at step 3: näher ansehen.\noven-controller resume r"
    fields = {name: body[name] for name in ("run", "kind", "severity", "step", "command", "merged", "key")}
    assert fields == Message("r", [HELD]).fields


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply(403, f"invalid_token {TOKEN} at /{PATH}\x1b[2J\n".encode()), "error=403"),
        (Reply(500, b"x" * 1_000_000), "error=500"),
        (Reply(308, headers={"Location": "https://evil.example/take"}), "error=308"),
    ],
)
def test_a_refusal_is_one_line_without_secrets_and_redirects_are_not_followed(
    reply: Reply, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with WebhookServer(reply) as server:
        failure = post(f"{server.url}/{PATH}", caplog)
    assert reason in failure and len(failure) < 200 and "\n" not in failure
    assert len(server.posted) == 1


def test_an_unreachable_server_and_one_that_does_not_speak_http(caplog: pytest.LogCaptureFixture) -> None:
    with WebhookServer() as server:
        url = server.url
    assert "Connection error" in post(f"{url}/{PATH}", caplog)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        listening.close()
        assert "Connection error" in post(f"https://127.0.0.1:{port}/{PATH}", caplog)


async def test_a_server_that_hangs_costs_one_attempt_and_no_notice() -> None:
    saves: list[Any] = []
    with WebhookServer(Reply(hangs=True)) as server:
        (recipient,) = resolve_recipients(NotifySettings.model_validate({"to": server.url}), {})
        sender = Delivery("r", recipient, Outbox(), lambda: saves.append(1))
        sender.outbox.add(HELD)
        await sender.send_next()
        await sender.send_next()
        assert sender.outbox.count() == 1 and len(server.posted) == 1
    sender.outbox.failed_at = None
    with WebhookServer(port=server.port) as again:
        await sender.send_next()
        assert sender.outbox.count() == 0 and len(again.posted) == 1
    assert len(saves) == 2
