"""Who is trusted: by a grant or by outcomes, and what a newcomer's vote does."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.mesh_log import LR, RUN, Log
from tests.support.trust_log import DEFAULTS, quiet, run

from oven_core.mesh.trust import Trust
from oven_core.protocol.messages import Decision
from oven_core.protocol.rules import Rules
from oven_runs.log.replay import replay


def test_two_newcomers_who_agree_are_no_quorum_and_a_person_is_asked() -> None:
    log = run("eve", "eva")
    log.propose("eve", 10.0, confidence=1.0)
    log.propose("eva", 10.0, confidence=1.0)
    quiet(log, "lr")
    assert log.verdict == "advised" and "only untrusted agents propose it (eva, eve)" in log.last.reason
    assert all(line.newcomer for line in log.last.tally if line.stance == "propose")


def test_a_newcomer_is_advised_and_an_agent_that_may_decide_alone_decides() -> None:
    log = run("eve")
    log.propose("eve", 2.0, confidence=1.0)
    quiet(log, "lr")
    assert log.verdict == "advised"
    log.tick(6)
    log.propose("lr", 0.5, confidence=0.9)
    quiet(log, "eve")
    assert log.verdict == "adopted"


def test_newcomers_neither_veto_nor_split_nor_move_the_value() -> None:
    log = run("eve", "eva", "bob")
    log.propose("lr", 0.5, confidence=0.7)
    log.vote("eve", "against", confidence=1.0)
    log.propose("eva", 10.0, confidence=1.0)
    log.propose("bob", 0.9, confidence=1.0)
    assert (log.verdict, log.last.value) == ("adopted", 0.5)


def test_a_newcomer_does_not_complete_the_quorum_of_a_trusted_agent() -> None:
    log = run("bob")
    log.propose("lr", 0.5, confidence=0.55)
    log.vote("bob", "for", confidence=1.0)
    assert log.verdict == "rejected" and "evidence in favour: gradients" in log.last.reason


def test_a_person_decides_on_a_newcomers_proposal_even_if_trusted_agents_support_it() -> None:
    log = run("bob", "amy", trusted={"lr": ("*",), "amy": ("*",)})
    log.propose("bob", 0.5, confidence=0.6)
    log.vote("lr", "for", confidence=1.0)
    log.vote("amy", "for", confidence=1.0)
    assert log.verdict == "advised" and "only untrusted agents propose it (bob)" in log.last.reason
    log = run("bob")
    log.propose("bob", 0.5, confidence=0.59)
    quiet(log, "lr")
    assert log.verdict == "rejected", "a person is not asked about a guess"


def test_a_silent_newcomer_does_not_delay_a_ballot_that_passes_without_it() -> None:
    log = run("hangs")
    log.propose("lr", 0.5, confidence=0.9)
    assert not log.decisions, "it has until the next tick"
    log.tick()
    assert (log.verdict, log.last.tick) == ("adopted", 10)


def test_a_ballot_without_a_quorum_stays_open_for_its_window() -> None:
    log = run("bob")
    log.propose("lr", 0.5, confidence=0.55)
    assert not log.decisions
    log.tick(log.mesh.state.rules.window_ticks)
    assert log.verdict == "rejected" and "no quorum" in log.last.reason


def test_in_lockstep_newcomers_are_awaited_too() -> None:
    log = Log()
    log.start(**DEFAULTS, alone={"lr": (LR,)}, lockstep=True)
    for agent in ("lr", "bob"):
        log.join(agent)
    log.tick(9, loss=1.0)
    log.propose("lr", 0.5, confidence=0.9)
    assert not log.decisions
    log.done("bob", log.ballots[-1].id)
    assert log.verdict == "adopted"


def test_a_newcomers_plan_does_not_tie_ballots_of_other_agents() -> None:
    log = run("bob")
    log.propose("bob", 5.0, "grad.clip", 0.9, plan=("grad.clip", LR))
    log.propose("lr", 0.5, LR, 0.9)
    log.tick()
    assert (log.last.actuator, log.verdict) == (LR, "adopted")
    assert "grad.clip" in log.mesh.ballots, "the newcomer's own waits for the rest of its plan"


def test_advice_that_nobody_follows_comes_later_each_time() -> None:
    log = run("eve")
    ticks = []
    for _ in range(100):
        known = len(log.ballots)
        log.propose("eve", 2.0, confidence=0.9)
        if len(log.ballots) > known:
            ticks.append(log.mesh.state.tick)
        quiet(log, "lr")
        log.tick()
    waits = [later - sooner for sooner, later in itertools.pairwise(ticks)]
    assert len(waits) >= 3 and all(later >= 2 * sooner for sooner, later in itertools.pairwise(waits))


def test_a_newcomer_whose_advice_is_followed_need_not_wait() -> None:
    log = run("eve")
    log.propose("eve", 2.0, confidence=0.9)
    quiet(log, "lr")
    log.operator("c1", "approve", of=log.last.id)
    assert log.verdict == "adopted" and log.last.command == "c1"
    log.receipt(log.last)
    log.tick(log.mesh.state.rules.cooldown_ticks)
    log.propose("eve", 3.0, confidence=0.9)
    quiet(log, "lr")
    assert log.verdict == "advised" and log.last.value == 3.0


@pytest.mark.parametrize("actuators", [(), (LR,)])
@pytest.mark.parametrize("alone", [False, True])
def test_an_operators_trust_counts_at_once_and_ends_in_mid_ballot(actuators: tuple[str, ...], alone: bool) -> None:
    log = run("bob")
    log.operator("c1", "trust", agent="bob", actuators=actuators, alone=alone)
    assert log.answers[-1].done
    log.propose("bob", 0.5, confidence=0.9)
    log.vote("lr", "abstain" if alone else "for")
    assert log.verdict == "adopted"
    log.receipt(log.last)
    log.tick(6, loss=1.0)
    log.propose("bob", 0.4, confidence=0.9)
    log.operator("c2", "distrust", agent="bob")
    quiet(log, "lr")
    assert log.verdict == "advised", "the tally asks at the close"


def approved(log: Log, value: float, loss: float) -> Decision:
    """The newcomer bob sees the fault, and lr agrees. A person approves, and the loss falls to `loss`."""
    log.propose("bob", value, confidence=0.9, target="loss", expected_change=-0.1, horizon=20, rationale=f"at {value}")
    log.vote("lr", "for")
    if log.verdict == "advised":
        log.operator(f"c{log.seq}", "approve", of=log.last.id)
    decision = log.last
    assert decision.verdict == "adopted"
    log.receipt(decision)
    log.tick(25, loss=loss)
    return decision


def test_good_outcomes_make_a_newcomer_trusted() -> None:
    log = run("bob")
    decisions = [approved(log, value, loss) for value, loss in ((0.8, 0.8), (0.6, 0.6), (0.5, 0.4))]
    assert [bool(decision.command) for decision in decisions] == [True, True, False], "two good outcomes are enough"


@pytest.mark.parametrize("opener", ["lr", "eve"])
@pytest.mark.parametrize("stance", ["propose", "for"])
@pytest.mark.parametrize("autonomy", ["auto", "advise"])
def test_a_newcomer_earns_nothing_by_what_trusted_agents_propose(opener: str, stance: str, autonomy: str) -> None:
    """Even if it opens the ballot one tick before they carry it, and a person approves the result."""
    log = run("eve", autonomy=autonomy)
    for value, loss in ((0.8, 0.8), (0.6, 0.6), (0.5, 0.4)):
        claim: dict[str, Any] = {"confidence": 0.9, "target": "loss", "expected_change": -0.1, "horizon": 20}
        log.propose(opener, value, **claim)
        log.tick()
        if opener == "eve":
            log.propose("lr", value, **claim)
        else:
            log.vote("eve", stance, value if stance == "propose" else None, **claim)  # type: ignore[arg-type]
        if log.verdict == "advised":
            log.operator(f"c{log.seq}", "approve", of=log.last.id)
        assert log.verdict == "adopted"
        log.receipt(log.last)
        log.tick(25, loss=loss)
    trust = log.mesh.state.trust
    assert not trust.is_trusted("eve", LR) and not trust.good_outcomes("eve")
    assert log.mesh.state.reputations["eve"] == 1 < log.mesh.state.reputations["lr"]


def test_a_newcomer_earns_nothing_if_trusted_agents_only_vote_for_its_proposal() -> None:
    """A person did not approve it, so it may have guessed what they would support."""
    log = run("eve")
    for value, loss in ((0.8, 0.8), (0.6, 0.6), (0.5, 0.4)):
        log.propose("eve", value, confidence=0.9, target="loss", expected_change=-0.1, horizon=20)
        log.vote("lr", "for", confidence=0.9)
        if log.verdict == "adopted":
            log.receipt(log.last)
        log.tick(25, loss=loss)
    assert not log.mesh.state.trust.good_outcomes("eve")


@given(st.lists(st.tuples(st.sampled_from(["propose", "for", "against"]), st.floats(0, 1), st.floats(0.02, 50))))
def test_newcomers_cannot_change_the_decision_of_an_agent_that_may_decide_alone(
    votes: list[tuple[str, float, float]],
) -> None:
    log = run(*(f"n{n}" for n in range(len(votes))), max_factor=100.0)
    log.propose("lr", 0.5, confidence=0.8)
    for n, (stance, confidence, value) in enumerate(votes):
        log.vote(f"n{n}", stance, value if stance == "propose" else None, confidence=confidence)  # type: ignore[arg-type]
    assert (log.verdict, log.last.value) == ("adopted", 0.5)
    assert replay(log.events, RUN).same


turns = st.tuples(
    st.permutations(["lr", "eve", "bob"]),
    st.tuples(*[st.sampled_from(["propose", "propose", "for", "against"])] * 3),
    st.sampled_from([0.9, 0.4, 1.0]),
    st.sampled_from(["loss", "loss", "eval/loss", ""]),
    st.integers(0, 2),
    st.sampled_from([1.0, 0.1, 0.8]),
)


@given(st.lists(turns, min_size=1, max_size=8), st.sampled_from(["auto", "advise"]))
def test_without_weight_or_approval_an_agent_earns_nothing(rounds: list[tuple[Any, ...]], autonomy: str) -> None:
    """Whatever newcomers vote before or after `lr`, which alone decides. A person approves only what `lr` proposes."""
    log = run("eve", "bob", autonomy=autonomy)
    loss = 1.0
    for n, (agents, stances, confidence, target, wait, factor) in enumerate(rounds):
        for agent, stance in zip(agents, stances, strict=True):
            value = 0.9 ** (n + 1) if stance == "propose" else None
            claim = {"target": target, "expected_change": -0.1, "horizon": 20, "rationale": str(log.seq)}
            log.vote(agent, stance, value, confidence=confidence, **claim)
            log.tick(wait, loss=loss)
        log.tick(3, loss=loss)
        for advice in list(log.mesh.state.advised.values()):
            if any(line.agent == "lr" and line.stance == "propose" and line.weight > 0 for line in advice.tally):
                log.operator(f"c{log.seq}", "approve", of=advice.id)
        for flight in list(log.mesh.state.in_flight.values()):
            log.receipt(flight.decision)
        loss *= factor
        log.tick(25, loss=loss, **{"eval/loss": loss})
    state = log.mesh.state
    for newcomer in ("eve", "bob"):
        assert not state.trust.good_outcomes(newcomer) and state.reputations.get(newcomer, 1.0) <= 1
    assert replay(log.events, RUN).same


def test_a_grant_for_an_absent_agent_names_those_present() -> None:
    log = run("bob")
    log.operator("c1", "trust", agent="ghost")
    assert not log.answers[-1].done and "its agents: bob, lr; start it before you trust it" in log.answers[-1].reason
    log.operator("c2", "trust", agent="bob", actuators=("no.such",))
    assert not log.answers[-1].done and "no actuator" in log.answers[-1].reason


@pytest.mark.parametrize("by_rules", [False, True])
def test_after_a_full_charge_only_the_actuators_of_a_new_grant_are_decided_alone(by_rules: bool) -> None:
    trust = Trust(Rules(alone={"bob": (LR,)} if by_rules else {}))
    if not by_rules:
        trust.set("bob", [LR], "alone")
    assert trust.decides_alone("bob", LR)
    trust.add_full_charge("bob")
    assert not trust.decides_alone("bob", LR) and trust.is_trusted("bob", LR)
    trust.set("bob", ["grad.clip"], "alone")
    assert trust.decides_alone("bob", "grad.clip")
    assert not trust.decides_alone("bob", LR)
    trust.set("bob", (), "alone")
    assert trust.decides_alone("bob", LR)
