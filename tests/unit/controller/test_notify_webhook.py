"""Webhooks against a real server: what it gets, and what is said of every kind of answer, without secrets."""

from __future__ import annotations

import base64
import hashlib
import hmac
import socket
from datetime import UTC, datetime

import pytest

from oven_bench.performance.webhook_server import Reply, WebhookServer
from oven_controller.notify import webhook
from oven_controller.notify.message import Message, Notice, message
from oven_controller.notify.recipients import Recipient
from oven_controller.notify.webhook import SAID, Answer, post

PASSWORD, TOKEN, PATH = "pa55word", "token-0123456789", "path-0123456789"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def sent() -> Message:
    notice = Notice(
        key="held-7", kind="held", severity="warning", seq=7, time=NOON, tick=3, step=3, title="the run is held",
        text="The run is held at step 3: näher ansehen.", command="oven-controller resume r",
    )  # fmt: skip
    return message("r", [notice], 1, NOON)


def posted(server: WebhookServer, secret: str = "", url: str = "") -> Answer:
    recipient = Recipient("hook", url or f"{server.url}/{PATH}", {"X-Token": TOKEN}, secret)
    answer = post(recipient, sent(), 1_767_268_800.0)
    assert not any(secret in answer.failure for secret in (PASSWORD, TOKEN, PATH))
    return answer


@pytest.mark.parametrize(
    "secret", ["a secret of any form", "whsec_" + base64.b64encode(b"key of the standard").decode()]
)
def test_the_body_is_the_message_and_the_signature_is_the_standards(secret: str) -> None:
    with WebhookServer() as server:
        assert posted(server, secret) == Answer(said="204 No Content")
    (got,) = server.posted
    assert (got.path, got.headers["x-token"], got.headers["content-type"]) == (
        f"/{PATH}", TOKEN, "application/json; charset=utf-8",
    )  # fmt: skip
    assert got.json == sent().model_dump(mode="json")
    assert (got.json["v"], got.json["run"], got.json["notice"]["kind"], got.json["more"]) == (1, "r", "held", 0)
    key = base64.b64decode(secret.removeprefix("whsec_")) if secret.startswith("whsec_") else secret.encode()
    said = f"{got.headers['webhook-id']}.{got.headers['webhook-timestamp']}.".encode() + got.body
    mark = base64.b64encode(hmac.new(key, said, hashlib.sha256).digest()).decode()
    assert (got.headers["webhook-id"], got.headers["webhook-signature"]) == ("r:held-7", f"v1,{mark}")


def test_without_a_secret_there_is_no_signature_and_a_password_goes_into_a_header() -> None:
    with WebhookServer() as server:
        url = server.url.replace("//", f"//ann:{PASSWORD}@") + "/x"
        assert not posted(server, url=url).failure
    headers = server.posted[0].headers
    assert "webhook-signature" not in headers
    assert headers["authorization"] == "Basic " + base64.b64encode(f"ann:{PASSWORD}".encode()).decode()


@pytest.mark.parametrize(
    ("reply", "failure", "rest_s"),
    [
        (
            Reply(403, f"invalid_token {TOKEN} at /{PATH}\x1b[2J\n".encode()),
            "403 Forbidden: invalid_token … at /… [2J",
            0,
        ),
        (Reply(429, headers={"Retry-After": "120"}), "429 Too Many Requests", 120),
        (Reply(500, headers={"Retry-After": "soon"}), "500 Internal Server Error", 0),
        (Reply(302, headers={"Location": "/elsewhere"}), "302: it redirects to another address of its own, which", 0),
        (Reply(308, headers={"Location": "https://evil.example/take"}), "308: it redirects to evil.example (https)", 0),
        (
            Reply(307, headers={"Location": ""}),
            "307: it redirects to another address of its own, which takes no POST",
            0,
        ),
    ],
)
def test_what_is_said_of_an_answer_that_is_none(reply: Reply, failure: str, rest_s: float) -> None:
    with WebhookServer(reply) as server:
        answer = posted(server)
    assert answer.failure.startswith(failure) and answer.rest_s == rest_s
    assert len(server.posted) == 1


def test_of_a_megabyte_of_an_error_a_line_is_repeated() -> None:
    with WebhookServer(Reply(500, b"x" * 1_000_000)) as server:
        failure = posted(server).failure
    assert failure == "500 Internal Server Error: " + "x" * SAID


def test_redirects_on_the_same_server_are_followed_as_posts_and_not_for_ever() -> None:
    with WebhookServer(Reply(308, headers={"Location": "/next"})) as server:
        assert posted(server).failure == "3 redirects did not end" or server.posted[-1].path == "/next"
    assert {one.body for one in server.posted} == {server.posted[0].body}


def test_nobody_there_and_nobody_who_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "ANSWER_S", 0.2)
    with WebhookServer(Reply(hangs=True)) as server:
        assert posted(server).failure == "no answer in time"
    assert posted(server).failure == "Connection refused"
    with socket.create_server(("127.0.0.1", 0)) as listening:  # takes connections, and is no web server
        failure = posted(server, url=f"https://127.0.0.1:{listening.getsockname()[1]}/{PATH}").failure
        assert "no answer in time" in failure or "timed out" in failure
