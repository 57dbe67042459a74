"""Persons on another machine, over TLS, with a key of their own and without the run's folder."""

from __future__ import annotations

import pytest
from tests.support.tls_stack import TlsStack

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


def test_every_command_from_elsewhere_and_nothing_without_the_right(tls_stack: TlsStack) -> None:
    far = tls_stack
    far.begin("rules.autonomy=advise", "rules.cooldown_ticks=500")
    ann, bob = far.person("ann"), far.person("bob")
    advised = far.stack.read_until(far.up, "advised: approve with")  # type: ignore[arg-type]
    assert "decision grad.clip 1 → 2 advised" in advised
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
    assert {author for kind, author in far.authors() if kind == "OperatorCommand"} == {"ann", "bob"}
