"""Plans: what one agent proposes on several actuators is adopted whole or not at all."""

from typing import Any

import pytest
from tests.support.mesh_log import LR, RUN, Log

from oven_core.protocol.messages import Decision
from oven_runs.log.replay import replay

BACK, CLIP = "run.rollback", "grad.clip"
PLAN = (LR, BACK)


def running(*others: str, lockstep: bool = False, **rules: Any) -> Log:
    log = Log()
    log.start(lockstep=lockstep, **{"alone": {"amy": PLAN}, **rules})
    log.join("amy")
    for name in others:
        log.join(name)
    log.tick(10)
    return log


def plan(log: Log, cut: float = 0.25, back: float = 5.0, by: str = "amy") -> None:
    log.propose(by, cut, LR, 0.8, plan=PLAN)
    log.propose(by, back, BACK, 0.8, plan=PLAN)


def settle(log: Log) -> dict[str, Decision]:
    """What was decided by the time that every ballot is due, by actuator."""
    seen = len(log.decisions)
    log.tick(log.mesh.state.rules.window_ticks)
    assert not log.mesh.ballots
    return {decision.actuator: decision for decision in log.decisions[seen:]}


def test_both_parts_of_a_plan_pass_together() -> None:
    log = running()
    plan(log)
    by_actuator = {decision.actuator: decision for decision in log.decisions}
    assert [by_actuator[name].verdict for name in PLAN] == ["adopted", "adopted"], "every voter has spoken"
    assert by_actuator[LR].tick == by_actuator[BACK].tick and replay(log.events, RUN).same


def test_one_agent_alone_does_not_close_the_first_ballot_before_the_second_is_open() -> None:
    log = running()
    log.propose("amy", 0.25, LR, 0.8, plan=PLAN)
    assert log.mesh.ballots and not log.decisions


def test_a_refused_part_rejects_the_whole_plan() -> None:
    """At the lower bound the cut is no change, and the rollback by itself would only lead there again."""
    log = running()
    log.propose("amy", 1.0, LR, 0.8, plan=PLAN)  # it is 1 already
    log.propose("amy", 5.0, BACK, 0.8, plan=PLAN)
    by_actuator = {decision.actuator: decision for decision in log.decisions}
    assert [by_actuator[name].verdict for name in PLAN] == ["rejected", "rejected"]
    assert "no change" in by_actuator[LR].reason
    assert "whole or not at all" in by_actuator[BACK].reason and "no change" in by_actuator[BACK].reason


def test_a_missing_part_rejects_the_whole_plan() -> None:
    log = running()
    log.propose("amy", 0.25, LR, 0.8, plan=PLAN)
    by_actuator = settle(log)
    assert by_actuator[LR].verdict == "rejected" and f"amy did not also propose {BACK}" in by_actuator[LR].reason


def test_a_plan_whose_agent_is_done_is_not_awaited() -> None:
    log = running(lockstep=True)
    log.propose("amy", 0.25, LR, 0.8, plan=PLAN)
    (ballot,) = log.mesh.ballots.values()
    log.done("amy", seen=ballot.opened.id)
    assert not log.mesh.ballots and log.last.verdict == "rejected" and log.mesh.state.closed_tick == 10


def test_a_veto_on_one_part_stops_both() -> None:
    log = running("bob")
    plan(log)
    log.vote("bob", "against", None, LR, 0.9, rationale="it is the data")
    log.vote("bob", "abstain", None, BACK)
    by_actuator = {decision.actuator: decision for decision in log.decisions}
    assert [by_actuator[name].verdict for name in PLAN] == ["rejected", "rejected"]
    assert "vetoed by bob" in by_actuator[LR].reason and "vetoed by bob" in by_actuator[BACK].reason


def test_a_change_that_passes_without_the_plan_is_adopted() -> None:
    log = running("bob", alone={"amy": PLAN, "eve": (BACK,)})
    log.join("eve")
    log.vote("eve", "propose", 5.0, BACK, 0.9)
    log.propose("amy", 1.0, LR, 0.8, plan=PLAN)
    log.propose("amy", 5.0, BACK, 0.8, plan=PLAN)
    by_actuator = settle(log)
    assert by_actuator[LR].verdict == "rejected" and by_actuator[BACK].verdict == "adopted"
    weights = {line.agent: line.weight for line in by_actuator[BACK].tally}
    assert weights["amy"] == 0 and weights["eve"] == 0.9


def test_an_agent_outvoted_on_one_part_counts_on_no_other() -> None:
    log = running("bob", "eve", alone={"amy": (LR, CLIP)})
    log.propose("amy", 4.0, LR, 0.8, plan=(LR, CLIP))
    log.propose("amy", 2.0, CLIP, 0.8, plan=(LR, CLIP))
    for name in ("bob", "eve"):
        log.vote(name, "propose", 0.25, LR, 0.9)
        log.vote(name, "abstain", None, CLIP)
    by_actuator = {decision.actuator: decision for decision in log.decisions}
    assert by_actuator[LR].verdict == "adopted" and by_actuator[LR].value == 0.25
    assert by_actuator[CLIP].verdict == "rejected" and f"{LR} moves in the other direction" in by_actuator[CLIP].reason


def test_the_budget_is_not_spent_on_half_a_plan() -> None:
    log = running(max_interventions=1)
    plan(log)
    assert [decision.verdict for decision in log.decisions] == ["rejected", "rejected"]
    assert any("budget spent" in decision.reason for decision in log.decisions)


@pytest.mark.parametrize(("autonomy", "verdict"), [("advise", "advised"), ("observe", "rejected")])
def test_a_plan_gets_the_autonomy_of_its_strictest_part(autonomy: str, verdict: str) -> None:
    log = running(autonomy_of={BACK: autonomy})
    plan(log)
    assert [decision.verdict for decision in log.decisions] == [verdict, verdict]


def test_a_plan_that_contradicts_itself_is_refused() -> None:
    log = running()
    plan(log, cut=4.0)  # a higher rate
    assert [decision.verdict for decision in log.decisions] == ["rejected", "rejected"]
    assert any("contradiction" in decision.reason for decision in log.decisions)


def test_plans_in_a_row_do_not_keep_a_ballot_open() -> None:
    log = running("bob", "eve", window_ticks=3)
    log.propose("bob", 0.5, LR, 0.6)
    opened = log.mesh.state.tick
    log.tick(2)
    log.propose("eve", 2.0, CLIP, 0.6, plan=(CLIP, LR))
    log.propose("eve", 0.5, LR, 0.6, plan=(CLIP, LR))
    log.tick(2)
    log.propose("amy", 5.0, BACK, 0.6, plan=(BACK, CLIP))
    log.propose("amy", 2.0, CLIP, 0.6, plan=(BACK, CLIP))
    log.tick(2)
    (decision,) = [decision for decision in log.decisions if decision.actuator == LR]
    assert decision.tick <= opened + 2 * 3
    log.tick(6)
    assert not log.mesh.ballots and replay(log.events, RUN).same
