"""Who may vote, what opens a ballot, what closes it, and what is refused."""

from typing import Literal

import pytest
from tests.support.mesh_log import LR, SPECS, Log

from oven_core.protocol.messages import Value


def test_a_proposal_opens_a_ballot_for_the_live_agents() -> None:
    log = Log.running("zoe", "amy", "bob")
    log.status("bob", "left")
    log.tick()
    (opened,) = log.propose("zoe", 0.5)
    assert opened.subject == f"oven.r.ballot.{log.ballots[0].id}"
    ballot = log.ballots[0]
    assert (ballot.actuator, ballot.proposal, ballot.opened_by) == (LR, 0.5, "zoe")
    assert (ballot.tick, ballot.closes_at_tick, ballot.eligible) == (1, 4, ("amy", "zoe"))
    assert ballot.id == f"{log.events[-2].seq:012d}-00"


def test_a_ballot_closes_at_its_tick_and_is_applied_later() -> None:
    log = Log.running("amy", "bob", apply_delay_ticks=2, expire_ticks=9)
    log.propose("amy", 0.5)
    assert log.tick(2) == []
    log.tick()
    assert (log.last.tick, log.last.apply_at_tick, log.last.expires_at_tick) == (3, 5, 14)
    assert log.last.id.endswith("-00") and log.last.ballot == log.ballots[0].id
    assert log.mesh.ballots == {} and log.mesh.pending == {} and log.mesh.divergence is None


def test_a_ballot_closes_early_once_every_agent_has_voted() -> None:
    log = Log.running("amy", "bob", "cat")
    log.tick()
    log.propose("amy", 0.5)
    log.vote("bob", "for")
    assert log.decisions == []
    log.done("cat")  # done with the tick, but has not seen the ballot
    assert log.decisions == []
    log.done("cat", seen=log.ballots[0].id)
    assert log.verdict == "adopted"
    assert [line.stance for line in log.last.tally] == ["propose", "for", "silent"]


@pytest.mark.parametrize("stance", ["against", "abstain"])
def test_a_later_vote_on_the_own_ballot_withdraws_the_proposal(stance: Literal["against", "abstain"]) -> None:
    """docs/protocol.md: the last vote counts, whoever opened the ballot."""
    log = Log.running("amy", "bob", alone=(LR,))
    log.propose("amy", 0.5, confidence=0.9)
    log.vote("amy", stance, confidence=0.9)
    log.vote("bob", "abstain")
    assert log.verdict == "rejected" and "no agent supports it any longer" in log.last.reason


def test_a_for_on_the_own_ballot_keeps_the_value_but_is_no_proposal() -> None:
    log = Log.running("amy", "bob", alone=(LR,))
    log.propose("amy", 0.5, confidence=0.9, target="reward", expected_change=0.1, horizon=20)
    log.vote("amy", "for", confidence=0.9)
    log.vote("bob", "abstain")
    assert log.verdict == "rejected" and "no quorum: no trusted agent proposes it" in log.last.reason
    assert log.last.value == 0.5
    alone = Log.running("amy", "bob", alone=(LR,))
    alone.propose("amy", 0.5, confidence=0.9)
    alone.vote("bob", "abstain")
    assert alone.verdict == "adopted", "what its proposal alone would have done"


def test_a_ballot_does_not_await_agents_that_left_or_are_silent() -> None:
    log = Log.running("amy", "bob")
    log.propose("amy", 0.5)
    log.status("bob", "left")
    assert len(log.decisions) == 1
    log = Log.running("amy", "bob", silent_ticks=2, window_ticks=100)
    log.tick(1)
    log.propose("amy", 0.5)
    log.tick(1)
    assert log.mesh.state.voters() == ("amy", "bob")
    log.tick(1)
    assert log.mesh.state.voters() == ("amy",)
    assert len(log.decisions) == 1


def test_an_agent_that_cannot_fire_says_why_and_stays() -> None:
    log = Log.running("amy")
    log.status("amy", "cannot_fire", reason="no metric eval/accuracy")
    assert log.mesh.state.agents["amy"].cannot_fire == "no metric eval/accuracy"
    assert log.mesh.state.agents["amy"].is_live


def test_no_ballot_waits_for_an_agent_that_cannot_fire_until_it_joins_again() -> None:
    log = Log.running("amy", "bob", "idle")
    log.status("idle", "cannot_fire", reason="there is no actuator data.mixture")
    log.propose("amy", 0.5)
    assert set(log.ballots[-1].eligible) == {"amy", "bob"}
    log.vote("bob", "for")
    decision = log.last
    assert decision.verdict == "adopted" and [line.agent for line in decision.tally] == ["amy", "bob"]
    log.receipt(decision)
    log.tick(30)
    log.join("idle")
    log.propose("amy", 1.0)
    assert list(log.ballots[-1].eligible) == ["amy", "bob", "idle"]


def test_a_ballot_closes_when_the_last_agent_that_it_waits_for_fails() -> None:
    log = Log.running("amy", "bob", "hog")
    log.propose("amy", 0.5)
    log.vote("bob", "for")
    assert not log.decisions
    log.status("hog", "failed", reason="out of memory")
    assert log.verdict == "adopted"


def test_the_last_vote_of_an_agent_counts() -> None:
    log = Log.running("amy", "bob", "cat")
    log.propose("amy", 0.5)
    log.vote("bob", "against", confidence=0.9)
    log.vote("bob", "for", confidence=0.5)
    log.tick(3)
    assert log.verdict == "adopted"
    assert {line.agent: line.stance for line in log.last.tally} == {"amy": "propose", "bob": "for", "cat": "silent"}


def test_a_vote_for_a_closed_ballot_is_late() -> None:
    log = Log.running("amy", "bob")
    log.propose("amy", 0.5)
    log.tick(3)
    log.propose("bob", 0.5, ballot=log.ballots[0].id)
    log.vote("bob", "for")
    assert len(log.ballots) == 1
    assert log.mesh.state.counters["vote.late"] == 2


def test_an_agent_that_joined_after_the_opening_may_not_vote() -> None:
    log = Log.running("amy", "bob")
    log.propose("amy", 0.5)
    log.join("eve")
    log.vote("eve", "against", confidence=1.0)
    log.vote("bob", "for")
    assert log.verdict == "adopted"
    assert [line.agent for line in log.last.tally] == ["amy", "bob"]
    assert log.mesh.state.counters["vote.not_eligible"] == 1


@pytest.mark.parametrize(
    ("actuator", "value", "message"),
    [
        (LR, 400, "agent amy proposed 400 for optimizer.lr_scale, outside its bounds 0.01 to 100: propose a value"),
        (LR, "fast", "but a finite number is required"),
        (LR, None, "but a finite number is required"),
        (LR, float("inf"), "but a finite number is required"),
        (LR, -1, "propose a number above 0"),
        ("grad.clip", -1, "outside its bounds 0 to 10"),
        ("optimizer.warmup", 3, "but this run has no such actuator: its actuators are data.mixture, grad.clip"),
        ("teacher.active", "huge", "whose choices are none, small, big: propose one of them"),
        ("data.mixture", {"web": 0.5, "code": 0.5}, "whose components are web, code, math"),
        ("data.mixture", {"web": 0.5, "code": 0.3, "math": 0.3}, "with a sum of 1.1 instead of 1 ± 0.001"),
        ("data.mixture", {"web": 1.2, "code": -0.2, "math": 0}, "negative or not finite"),
        ("run.rollback", "back", "an action that takes a finite number or no value"),
    ],
)
def test_a_refusal_names_the_value_the_limit_and_the_remedy(actuator: str, value: Value, message: str) -> None:
    log = Log.running("amy")
    log.propose("amy", value, actuator)
    assert (log.verdict, log.last.ballot, log.last.tally) == ("rejected", "", ())
    assert message in log.last.reason
    assert log.ballots == []


def test_the_first_refusal_of_a_kind_is_logged_and_the_others_are_counted() -> None:
    log = Log.running("amy", "bob")
    for value in (400, 500, 600):
        log.propose("amy", value)
    log.propose("bob", 400)
    log.propose("amy", "fast")
    assert len(log.decisions) == 3
    assert log.mesh.state.counters["refused.bounds"] == 4
    for n in range(50):
        log.propose("amy", 1, f"made.up{n}")
    assert len(log.decisions) == 4


def test_an_agent_moves_only_what_it_announced() -> None:
    log = Log.running()
    log.join("amy", moves=("grad.clip",))
    log.propose("amy", 0.5)
    assert "without having announced it: list the actuator in the `moves`" in log.last.reason


def test_votes_of_an_agent_that_never_joined_are_refused() -> None:
    log = Log.running("amy", "bob")
    log.propose("eve", 0.5)
    assert "without having joined" in log.last.reason
    log.propose("amy", 0.5)
    log.vote("eve", "against", confidence=1.0)
    log.vote("bob", "for")
    assert log.verdict == "adopted"
    assert log.mesh.state.counters["refused.not_joined"] == 2


def test_a_refused_huge_value_fits_into_the_log() -> None:
    log = Log.running("amy")
    log.propose("amy", "x" * 15_000, "y" * 300)
    log.propose("amy", {str(n) * 20: 0.0 for n in range(300)}, "data.mixture")
    assert all(len(decision.wire()) < 4_000 for decision in log.decisions)


def test_the_end_of_the_run_rejects_open_ballots() -> None:
    log = Log.running("amy", "bob")
    log.propose("amy", 0.5)
    log.end()
    assert log.verdict == "rejected"
    assert log.last.reason == "the run ended (completed) before the ballot closed"
    log.propose("amy", 0.5)
    assert len(log.ballots) == 1 and log.mesh.state.counters["vote.no_run"] == 1


def test_a_restart_keeps_ballots_on_unchanged_actuators() -> None:
    log = Log.running("amy", "bob")
    log.propose("amy", 0.5)
    log.propose("amy", 2.0, "grad.clip")
    moved = SPECS[0].model_copy(update={"value": 2.0})
    log.restart(specs=(moved, *SPECS[2:]))
    assert [ballot.opened.actuator for ballot in log.mesh.ballots.values()] == [LR]
    assert "no longer announces grad.clip" in log.last.reason
