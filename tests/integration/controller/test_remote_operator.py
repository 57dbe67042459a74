"""Persons on another machine, over TLS, with a key of their own and without the run's folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.tls_stack import TlsStack

from oven_bench.performance.webhook_server import WebhookServer

pytestmark = pytest.mark.e2e

COMMANDS: tuple[tuple[str, ...], ...] = (
    ("hold", "--reason", "a look"),
    ("set", "grad.clip", "3"),
    ("resume",),
    ("mute", "adviser"),
    ("unmute", "adviser"),
    ("trust", "adviser", "grad.clip"),
    ("distrust", "adviser"),
    ("trust", "adviser"),
    ("autonomy", "observe", "grad.clip"),
    ("autonomy", "advise"),
)
"""What waits for nothing of the agent's."""


@pytest.fixture
def hook() -> Iterator[WebhookServer]:
    with WebhookServer() as server:
        yield server


def test_every_command_from_elsewhere_and_nothing_without_the_right(tls_stack: TlsStack, hook: WebhookServer) -> None:
    far = tls_stack
    far.begin("rules.autonomy=advise", "rules.cooldown_ticks=500", "rules.approve_minutes=5")
    ann, bob, eve = far.person("ann"), far.person("bob"), far.person("eve", "--read-only")
    far.stack.env["HOOK"] = hook.url
    watcher = far.stack.start("notify", "watch", "--notify", "env:HOOK", "--creds", str(eve))
    advised = far.stack.read_until(far.up, "advised: approve with")  # type: ignore[arg-type]
    assert "decision grad.clip 1 → 2 advised" in advised
    hook.until(len, "advice is told elsewhere")
    approved = far.json_elsewhere(0, ann, "approve", "grad.clip", "--reason", "go on")
    assert approved["receipt"]["status"] == "applied" and "operator ann" in approved["decision"]["reason"]
    for command in COMMANDS:
        far.json_elsewhere(0, bob, *command)
    print(far.elsewhere(ann, "status")[1])
    print(far.elsewhere(ann, "decisions")[1])
    print(far.elsewhere(ann, "explain", "grad.clip")[1])
    print(far.elsewhere(ann, "log")[1][-500:])
    far.json_elsewhere(0, ann, "stop")
    far.end()
    hook.until(lambda posted: posted[-1].json["notice"]["kind"] == "ended", "its end is told elsewhere")
    assert far.stack.end_of(watcher)[0] == 0
    assert {author for kind, author in far.authors() if kind == "OperatorCommand"} == {"ann", "bob"}
