"""A mesh over a recording with something changed."""

from __future__ import annotations

from tests.golden import recorded
from tests.support.mesh_log import LR, RUN, Log
from tests.support.replayed import a_run

from oven_core.protocol.events import Event
from oven_core.protocol.messages import Decision
from oven_runs.log.counterfactual import ChangedMesh
from oven_runs.settings.resolution import with_rules

GOLDEN = recorded.events("run-grpo-lr-high")


def decided(events: list[Event], run: str, **rules: object) -> ChangedMesh:
    loop = ChangedMesh(run, lambda logged: with_rules(logged, rules))
    for event in events:
        loop.feed(event)
    return loop


GRANTS = {"lr": (LR, "run.rollback", "run.evaluate")}
"""What its agent declared itself, when this run was recorded."""


def test_without_changes_every_decision_equals_the_logged_one() -> None:
    loop = decided(a_run().events, RUN)
    assert len(loop.logged) >= 3
    assert [made.wire() for made in loop.computed] == [made.wire() for _, made in loop.logged]
    assert loop.divergences() == [] and loop.ignored_receipts == 0


def test_a_log_of_earlier_code_gets_the_same_changes() -> None:
    """When it was recorded, ballots also waited for agents with nothing to do, so the bytes differ."""
    loop = decided(GOLDEN, recorded.run_of(GOLDEN), alone=GRANTS)
    changes = [
        [(made.actuator, made.verdict, made.value) for made in decisions]
        for decisions in (loop.computed, [made for _, made in loop.logged])
    ]
    assert changes[0] == changes[1] and len(changes[0]) >= 3


def test_at_the_end_of_an_unfinished_log_a_decision_is_no_divergence() -> None:
    events = a_run().events
    last = next(n for n, entry in enumerate(events) if isinstance(entry.body, Decision))
    loop = decided(events[:last], RUN)
    assert len(loop.computed) == 1 and loop.logged == [] and loop.divergences() == []


def test_receipts_of_other_decisions_are_ignored() -> None:
    """The logged decision is in flight and its twin is refused; by the other rules there is nothing to be a twin of."""
    log = Log(stride=1)
    log.start(cooldown_ticks=0, quorum_confidence=0.8, alone={"amy": (LR,)})
    log.join("amy")
    log.join("bob")
    log.propose("amy", 0.5, confidence=0.85)
    log.tick(3)
    log.propose("amy", 0.5, confidence=0.95)
    log.tick(3)
    assert [made.verdict for made in log.decisions] == ["adopted", "rejected"]
    assert "already in flight" in log.last.reason
    loop = decided(log.events, RUN, quorum_confidence=0.9)
    assert [made.verdict for made in loop.computed] == ["rejected", "adopted"]
    assert [(parted.tick, parted.seq is not None) for parted in loop.divergences()] == [(3, True), (6, True)]


def test_rules_replace_those_of_every_incarnation() -> None:
    log = Log(stride=1)
    log.start()
    log.restart(autonomy="observe", alone={"amy": (LR,)})
    log.join("amy")
    log.join("bob")
    log.propose("amy", 0.5, confidence=0.9)
    log.tick(3)
    assert log.verdict == "rejected"
    loop = decided(log.events, RUN, autonomy="auto")
    assert [made.verdict for made in loop.computed] == ["adopted"]
    assert {name: dict(verdict.computed) for name, verdict in loop.verdict_counts().items()} == {LR: {"adopted": 1}}
