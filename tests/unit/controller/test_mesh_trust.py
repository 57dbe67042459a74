"""Who is trusted: by a grant, by outcomes; what a newcomer's vote does, and who is charged with clear harm."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.mesh_log import LR, RUN, Log

from oven_core.protocol.messages import Decision, MetricSpec, Outcome
from oven_runs.log.replay import replay

DEFAULTS: dict[str, Any] = {"newcomers": "probation", "harm_charge": 0.6, "reversals": 3}


def run(*agents: str, **rules: Any) -> Log:
    """`lr` is a specialist by a grant of the settings. The other agents are newcomers."""
    log = Log()
    log.start(**{**DEFAULTS, "trusted": {"lr": ("*", LR)}, **rules})
    for agent in ("lr", *agents):
        log.join(agent)
    log.tick(9, loss=1.0)
    return log


def quiet(log: Log, *agents: str) -> None:
    for agent in agents:
        log.vote(agent, "abstain")


def charges(log: Log) -> list[Outcome]:
    return [outcome for outcome in log.outcomes if outcome.charge]


def test_two_newcomers_who_agree_are_no_quorum_and_a_person_is_asked() -> None:
    log = run("eve", "eva")
    log.propose("eve", 10.0, confidence=1.0)
    log.propose("eva", 10.0, confidence=1.0)
    quiet(log, "lr")
    assert log.verdict == "advised" and "only untrusted agents propose it (eva, eve)" in log.last.reason
    assert all(line.newcomer for line in log.last.tally if line.stance == "propose")


def test_a_newcomer_is_advised_and_a_specialist_of_the_settings_decides() -> None:
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
    log.start(**DEFAULTS, trusted={"lr": ("*", LR)}, lockstep=True)
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
def test_an_operators_trust_counts_at_once_and_ends_in_mid_ballot(actuators: tuple[str, ...]) -> None:
    log = run("bob")
    log.operator("c1", "trust", agent="bob", actuators=actuators)
    assert log.answers[-1].done
    log.propose("bob", 0.5, confidence=0.9)
    log.vote("lr", "for" if not actuators else "abstain")
    assert log.verdict == "adopted", "only a grant that names the actuator makes a specialist"
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


def test_clear_harm_is_charged_to_its_carriers_even_if_confounded() -> None:
    log = run("eve", "eva", newcomers="full")
    log.propose("eve", 10.0, confidence=1.0, target="loss", horizon=20)
    log.propose("eva", 10.0, confidence=1.0, target="loss", horizon=20)
    quiet(log, "lr")
    log.receipt(log.last)
    log.tick(3, loss=5.0)
    log.propose("lr", 0.5, actuator="grad.clip", confidence=0.9)  # another's change cuts the window short
    log.tick(3, loss=5.0)
    [charge] = charges(log)
    assert {line.agent for line in charge.lines} == {"eve", "eva"} and charge.gain == -4.0
    held = log.mesh.state.reputations
    assert held["eve"] < 0.5 and held.get("lr", 1.0) >= 1.0


CHOICE = (
    MetricSpec(name="loss", better="down"),
    MetricSpec(name="calm", better="up"),
    MetricSpec(name="eval/loss", better="down", held_out=True),
)


def change(
    log: Log, agent: str, value: float, target: str, actuator: str = LR, supporter: str = "", loss: float = 1.0
) -> None:
    log.propose(agent, value, actuator=actuator, confidence=0.9, target=target, expected_change=0.1, horizon=20)
    if supporter:
        log.vote(supporter, "for", actuator=actuator, confidence=0.9)
    log.tick(3, loss=loss, calm=1.0)
    log.receipt(log.last)


def two_specialists(**metrics: float) -> Log:
    """`eve` is as trusted as `lr`, on grad.clip."""
    log = run("eve", trusted={"lr": (LR,), "eve": ("grad.clip",)}, metrics=CHOICE)
    log.tick(9, loss=1.0, calm=1.0, **metrics)
    return log


def test_the_author_of_harm_is_charged_more_than_an_honest_agent_whose_metric_it_hurts() -> None:
    log = two_specialists()
    change(log, "lr", 0.9, "loss")
    log.tick(14, loss=1.0, calm=1.0)
    change(log, "eve", 1.5, "calm", "grad.clip")
    log.tick(25, loss=5.0, calm=2.0)
    [charge] = charges(log)
    assert {line.agent: line.merit for line in charge.lines} == {"lr": -0.5, "eve": -1.0}
    [failed] = [outcome for outcome in log.outcomes if outcome.actuator == "grad.clip"]
    assert failed.scored and failed.beat == 0 and "clear harm to loss" in failed.reason
    held = log.mesh.state.reputations
    assert held["eve"] < 0.3 < held["lr"]


def test_harm_to_a_metric_that_only_the_repairing_agent_names_is_charged_to_its_author() -> None:
    log = two_specialists()
    change(log, "eve", 1.5, "calm", "grad.clip")
    log.tick(6, loss=5.0, calm=2.0)
    assert not charges(log), "no change in force named the loss"
    change(log, "lr", 0.5, "loss", loss=5.0)
    log.tick(10, loss=5.0, calm=2.0)
    [charge] = charges(log)
    assert [line.agent for line in charge.lines] == ["eve"]
    assert log.mesh.state.reputations.get("lr", 1.0) >= 0.7, "only the outcome of its own change counts"


@pytest.mark.parametrize("plan", [(), ("run.rollback", "grad.clip")])
def test_a_change_in_one_plan_with_a_rollback_does_not_answer_for_what_others_named(plan: tuple[str, ...]) -> None:
    log = two_specialists()
    change(log, "lr", 0.9, "loss")
    log.operator("c1", "trust", agent="eve", actuators=("run.rollback",))
    log.propose("eve", 1.5, "grad.clip", 0.9, target="calm", horizon=20, plan=plan)
    if plan:
        log.propose("eve", 10.0, "run.rollback", 0.9, target="calm", horizon=20, plan=plan)
    log.tick(3, loss=1.0, calm=1.0)
    for flight in list(log.mesh.state.in_flight.values()):
        log.receipt(flight.decision)
    log.tick(9, loss=5.0, calm=1.0)
    [charge] = charges(log)
    assert [line.agent for line in charge.lines] == (["lr"] if plan else ["eve", "lr"])


def test_a_change_is_charged_once_for_harm_to_several_metrics() -> None:
    log = two_specialists(**{"eval/loss": 1.0})
    change(log, "eve", 1.5, "calm", "grad.clip")
    change(log, "lr", 0.9, "loss")
    log.tick(9, loss=5.0, calm=0.1, **{"eval/loss": 5.0})
    assert sorted(line.agent for charge in charges(log) for line in charge.lines) == ["eve", "lr"]


def test_a_vote_for_harm_is_charged_by_half() -> None:
    log = run("eve", trusted={"lr": (LR,), "eve": ("grad.clip",)})
    change(log, "lr", 2.0, "loss", supporter="eve")
    log.tick(6, loss=5.0)
    [charge] = charges(log)
    assert {line.agent: (line.stance, line.merit) for line in charge.lines} == {"lr": ("propose", -1.0)}
    log = run("eve", trusted={"lr": (LR,), "eve": (LR,)})
    change(log, "lr", 2.0, "loss", supporter="eve")
    log.tick(6, loss=5.0)
    [charge] = charges(log)
    expected = {"lr": ("propose", -1.0), "eve": ("for", -0.5)}
    assert {line.agent: (line.stance, line.merit) for line in charge.lines} == expected


def test_a_change_that_moves_its_own_metric_is_not_charged_for_it_and_no_other_agent_is() -> None:
    """A harder mixture lowers the reward by construction; its held-out metric still answers for it."""
    log = run("eve", trusted={"lr": (LR,), "eve": ("data.mixture",)}, metrics=CHOICE)
    log.tick(20, loss=1.0, calm=1.0, **{"eval/loss": 1.0})
    change(log, "lr", 0.9, "loss")
    mixture = {"web": 0.3, "code": 0.4, "math": 0.3}
    log.propose("eve", mixture, actuator="data.mixture", confidence=0.9, target="eval/loss", horizon=20)
    log.tick(3, loss=1.0)
    log.receipt(log.last)
    log.tick(10, loss=2.0, **{"eval/loss": 1.0})
    assert not charges(log)
    log.tick(4, loss=2.0, **{"eval/loss": 5.0})
    [charge] = charges(log)
    assert charge.target == "eval/loss" and {line.agent for line in charge.lines} == {"lr", "eve"}


def test_a_change_is_no_longer_in_force_after_two_horizons() -> None:
    log = two_specialists()
    change(log, "eve", 1.5, "calm", "grad.clip")
    log.tick(30, loss=1.0, calm=1.0)
    change(log, "lr", 0.9, "loss")
    log.tick(9, loss=1.0, calm=1.0)
    log.tick(6, loss=5.0, calm=1.0)
    [charge] = charges(log)
    assert [line.agent for line in charge.lines] == ["lr"]


def test_a_remedy_is_not_charged_for_an_earlier_fall() -> None:
    log = run("bob")
    for loss in (1.5, 2.0, 2.5, 3.0):
        log.tick(1, loss=loss)
    log.propose("lr", 0.5, confidence=0.9, target="loss", horizon=20)
    quiet(log, "bob")
    log.receipt(log.last)
    log.tick(10, loss=4.0)
    assert not charges(log)


def test_an_agent_that_vetoes_answers_for_the_consequences() -> None:
    log = run("eve", newcomers="full")
    log.propose("lr", 0.5, confidence=0.9, target="loss", horizon=20)
    log.vote("eve", "against", confidence=1.0)
    assert log.verdict == "rejected"
    log.tick(6, loss=5.0)
    [charge] = charges(log)
    assert [(line.agent, line.stance) for line in charge.lines] == [("eve", "against")]


def test_below_the_floor_an_agent_is_a_shadow() -> None:
    log = Log()
    log.start(**DEFAULTS, trusted={"lr": ("*", LR), "eve": ("*",)}, reputations={"eve": 0.05})
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


@given(st.lists(st.tuples(st.sampled_from(["propose", "for", "against"]), st.floats(0, 1), st.floats(0.02, 50))))
def test_newcomers_cannot_change_a_trusted_specialists_decision(
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
