"""Limits on loops: repeated and failed ballots, floods, back-and-forth changes, and crowds of newcomers."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from tests.support.mesh_log import LR, Log
from tests.support.trust_log import DEFAULTS, quiet, run


def test_below_the_floor_an_agent_is_a_shadow() -> None:
    log = Log()
    log.start(**DEFAULTS, trusted={"lr": ("*",), "eve": ("*",)}, reputations={"eve": 0.05})
    for agent in ("lr", "eve"):
        log.join(agent)
    log.tick()
    assert log.propose("eve", 10.0, confidence=1.0) == [] and log.mesh.state.is_shadow("eve")


def test_too_little_confidence_opens_no_ballot() -> None:
    log = run("eve")
    log.propose("eve", 2.0, confidence=0.01)
    assert not log.ballots and "rules.least_confidence is 0.2" in log.last.reason
    assert log.propose("eve", 3.0, confidence=0.01) == [], "said once"


def test_an_agent_whose_ballots_fail_waits_longer_each_time() -> None:
    log = run("eve", trusted={"lr": ("*",), "eve": ("grad.clip",)})
    opened = []
    for _ in range(120):
        log.propose("eve", 2.0, actuator=LR, confidence=0.5, rationale=f"{log.mesh.state.tick}")
        log.tick(loss=1.0)
        opened.append(len(log.ballots))
    assert opened[-1] <= 6, "120 without the wait"


def test_a_repeated_proposal_is_refused() -> None:
    log = run("eve")
    for _ in range(40):
        log.propose("eve", 2.0, confidence=0.5, rationale="I think so")
        log.tick(loss=1.0)
    assert len(log.ballots) == 1


def test_votes_beyond_the_limit_per_tick_are_ignored() -> None:
    log = run("eve", "bob", votes_per_tick=4)
    log.propose("lr", 0.5, confidence=0.9)
    for _ in range(20):
        log.vote("eve", "abstain")
    assert log.mesh.state.counters["vote.too_many"] >= 15


def pull(log: Log, turns: Iterable[tuple[str, float]]) -> list[str]:
    """Each agent in turn proposes its value. Return the verdicts."""
    verdicts = []
    for n, (agent, value) in enumerate(turns):
        log.propose(agent, value, confidence=0.9, rationale=str(n))
        quiet(log, *(name for name in log.mesh.state.agents if name != agent))
        verdicts.append(log.verdict)
        if log.verdict == "adopted":
            log.receipt(log.last)
        log.tick(6, loss=1.0)
    return verdicts


def test_an_agent_that_moves_a_knob_back_and_forth_is_suspended_and_others_continue() -> None:
    log = run("bob", trusted={"lr": ("*",), "bob": ("*",)}, evidence_kinds=1)
    verdicts = pull(log, [("bob", (2.0, 1.0)[n % 2]) for n in range(5)])
    assert verdicts == ["adopted"] * 4 + ["advised"]
    assert "bob changed the direction of optimizer.lr_scale 3 times, last at tick 27" in log.last.reason
    assert "so its votes on it have no weight any longer" in log.decisions[-2].reason
    assert next(line for line in log.last.tally if line.agent == "bob").newcomer
    assert pull(log, [("lr", 0.5)]) == ["adopted"], "the knob is not frozen"
    log.operator("c1", "trust", agent="bob", actuators=(LR,))
    assert pull(log, [("bob", 2.0)]) == ["adopted"]


def test_of_two_agents_that_reversed_a_knob_the_less_reputable_one_is_suspended() -> None:
    """The honest one followed the other back and forth."""
    log = run("bob", trusted={"lr": ("*",), "bob": ("*",)}, reputations={"lr": 1.2, "bob": 0.9}, evidence_kinds=1)
    pull(log, [("bob", 0.1), ("lr", 0.5), ("bob", 0.8), ("lr", 0.5), ("bob", 0.1), ("lr", 0.5)])
    assert not log.mesh.state.is_trusted("bob", LR) and log.mesh.state.is_trusted("lr", LR)
    assert log.mesh.state.is_trusted("bob", "grad.clip")


def test_a_knob_that_two_agents_pull_in_opposite_directions_is_left_to_a_person() -> None:
    log = run("bob", trusted={"lr": ("*",), "bob": ("*",)}, evidence_kinds=1)
    turns = [("bob", 2.0), ("lr", 1.0), ("bob", 2.0), ("lr", 1.0), ("bob", 2.0), ("lr", 1.0)]
    assert pull(log, turns) == ["adopted"] * 4 + ["advised", "rejected"]
    advice = next(decision for decision in log.decisions if decision.verdict == "advised")
    assert "changed direction 3 times" in advice.reason
    log.operator("c1", "autonomy", actuator=LR, autonomy="auto")
    assert pull(log, [("bob", 2.0)]) == ["adopted"]


def crowd(log: Log, newcomers: Iterable[str], ticks: int = 200) -> None:
    """At every tick, each newcomer proposes a new value for each knob, with a new reason."""
    for _ in range(ticks):
        for name in newcomers:
            tick = log.mesh.state.tick
            log.propose(name, 2 + tick / 1000, confidence=0.4, rationale=f"{name} {tick}")
            log.propose(name, 2 + tick / 1000, "grad.clip", confidence=0.4, rationale=f"{name} {tick}")
        log.tick(loss=1.0)


@pytest.mark.parametrize("count", [1, 20])
def test_twenty_newcomers_cause_no_more_rejected_decisions_than_one(count: int) -> None:
    names = [f"n{n}" for n in range(count)]
    log = run(*names)
    crowd(log, names)
    assert 4 <= len([decision for decision in log.decisions if decision.verdict != "adopted"]) <= 8


def test_each_newcomer_gets_its_turn() -> None:
    names = ["honest", *(f"n{n}" for n in range(4))]
    log = run(*names)
    crowd(log, names[::-1], ticks=400)
    assert {ballot.opened_by for ballot in log.ballots[:5]} == set(names)


def test_a_newcomer_whose_advice_was_approved_does_not_wait_for_the_others() -> None:
    log = run("bob", "eve")
    log.propose("bob", 2.0, confidence=0.9)
    quiet(log, "lr", "eve")
    log.operator("c1", "approve", of=log.last.id)
    crowd(log, ["eve"], ticks=60)
    ballots = len(log.ballots)
    log.tick(4, loss=1.0)
    log.propose("bob", 3.0, confidence=0.9)
    assert len(log.ballots) == ballots + 1


def test_advice_starts_no_cool_down_that_newcomers_could_use_to_block_a_knob() -> None:
    log = run("eve")
    log.propose("eve", 2.0, confidence=1.0)
    quiet(log, "lr")
    assert log.verdict == "advised"
    log.tick()
    log.propose("lr", 0.5, confidence=0.9)
    quiet(log, "eve")
    assert log.verdict == "adopted"
