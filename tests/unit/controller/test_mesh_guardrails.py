"""What a passed tally still has to respect."""

from typing import Any

import pytest
from tests.support.mesh_log import LR, RUN, SPECS, Log

from oven_core.protocol.messages import Decision, MetricSpec, Value
from oven_runs.log.replay import replay

MIX = "data.mixture"


def adopt(log: Log, value: Value, actuator: str = LR) -> None:
    log.propose("amy", value, actuator)
    log.vote("bob", "for", actuator=actuator)


def test_observe_logs_the_decision_that_would_have_been_made() -> None:
    log = Log.running("amy", "bob", autonomy="observe", autonomy_of={"grad.clip": "auto"}, max_factor=4)
    adopt(log, 0.1)
    assert log.verdict == "rejected"
    assert "observe: would have set 0.25" in log.last.reason
    adopt(log, 2.0, "grad.clip")
    assert log.verdict == "adopted"


def test_a_proposal_of_the_current_value_is_rejected() -> None:
    log = Log.running("amy", "bob")
    adopt(log, 1.01)
    assert "no change: from 1 to 1.01 is a change of 0.01, below the minimum of 0.02" in log.last.reason
    adopt(log, "none", "teacher.active")
    assert "no change: teacher.active is already “none”" in log.last.reason
    adopt(log, {"web": 0.51, "code": 0.29, "math": 0.2}, MIX)
    assert "no change" in log.last.reason and log.verdict == "rejected"


def test_an_actuator_cools_down_by_itself_after_a_change() -> None:
    log = Log.running("amy", "bob", cooldown_ticks=5)
    adopt(log, 0.5)
    log.tick(4)
    adopt(log, 0.8)
    assert "cooling down: 4 ticks since the last change of optimizer.lr_scale, 5 required" in log.last.reason
    adopt(log, 2.0, "grad.clip")
    assert log.verdict == "adopted"  # each actuator cools by itself
    log.tick()
    adopt(log, 0.8)
    assert log.verdict == "adopted"


def test_the_budget_covers_the_whole_run() -> None:
    log = Log.running("amy", "bob", max_interventions=1)
    adopt(log, 0.5)
    adopt(log, 2.0, "grad.clip")
    assert "budget spent: 1 of 1 interventions used" in log.last.reason
    log.restart(max_interventions=1)
    adopt(log, 2.0, "grad.clip")
    assert log.verdict == "rejected"


def test_a_measurement_does_not_count_against_the_budget() -> None:
    log = Log.running("amy", "bob", max_interventions=1)
    adopt(log, None, "run.evaluate")
    log.receipt(log.last)
    adopt(log, 0.5)
    assert log.verdict == "adopted"
    log.tick(5)
    adopt(log, None, "run.evaluate")
    assert log.verdict == "adopted", "and goes on when the budget is spent"


def test_contradictions_wait_for_the_receipt_or_the_expiry() -> None:
    log = Log.running("amy", "bob", cooldown_ticks=0)
    adopt(log, 2.0)
    rise = log.last
    adopt(log, None, "run.rollback")
    assert f"optimizer.lr_scale:up is in flight (decision {rise.id}), run.rollback must wait" in log.last.reason
    log.receipt(rise)
    adopt(log, None, "run.rollback")
    assert log.verdict == "adopted"
    adopt(log, 1.0)  # down, from 2: not the contradicted direction
    assert log.verdict == "adopted"
    adopt(log, 4.0)
    assert "contradiction: run.rollback is in flight" in log.last.reason
    log.tick(21)
    assert log.mesh.state.tick <= log.last.expires_at_tick
    log.tick(1)
    log.done("amy")
    adopt(log, 4.0)
    assert log.verdict == "adopted"


def test_a_change_in_flight_is_not_decided_again() -> None:
    log = Log.running("amy", "bob", cooldown_ticks=0)
    adopt(log, None, "run.rollback")
    first = log.last
    adopt(log, None, "run.rollback")
    assert f"already in flight: decision {first.id} has no receipt yet" in log.last.reason


def test_a_change_that_is_too_large_is_limited() -> None:
    log = Log.running("amy", "bob", max_factor=4)
    adopt(log, 0.01)
    assert (log.verdict, log.last.value) == ("adopted", 0.25)
    assert "limited to 0.25, a factor of 4 from 1, instead of 0.01" in log.last.reason
    adopt(log, 9.0, "grad.clip")
    assert log.last.value == pytest.approx(3.5)
    assert "limited to 3.5, 0.25 of the range 0 to 10 from 1, instead of 9" in log.last.reason
    adopt(log, {"web": 0.0, "code": 0.0, "math": 1.0}, MIX)
    assert log.last.value == {"web": 0.0625, "code": 0.0375, "math": 0.9}
    assert "a shift of 0.7 instead of 0.8" in log.last.reason


def test_bounds_outrank_the_largest_change() -> None:
    specs = (SPECS[0].model_copy(update={"value": 0.001}),)
    log = Log()
    log.start(specs=specs)
    log.join("amy")
    log.join("bob")
    adopt(log, 1.0)
    assert log.last.value == 0.01


def test_an_unknown_effective_value_limits_nothing() -> None:
    log = Log()
    log.start(specs=(SPECS[0].model_copy(update={"value": None}),))
    log.join("amy")
    log.join("bob")
    adopt(log, 50.0)
    assert (log.verdict, log.last.value, log.last.before) == ("adopted", 50.0, None)


HELD_OUT = (MetricSpec(name="loss"), MetricSpec(name="eval/loss", held_out=True))


def needing(need: str, change: str = MIX, metrics: tuple[MetricSpec, ...] = (), **rules: Any) -> Log:
    log = Log()
    specs = tuple(spec.model_copy(update={"moves_own_metric": False}) for spec in SPECS)
    log.start(specs, metrics=metrics, requires=((change, need),), cooldown_ticks=0, **rules)
    log.join("amy")
    log.join("bob")
    return log


@pytest.mark.parametrize(
    ("need", "metrics", "words"),
    [
        ("held_out", HELD_OUT[:1], "unmet: data.mixture needs a held-out metric (held_out), but the learner announces"),
        ("metric:eval/*", HELD_OUT[:1], "needs the metric eval/* (metric:eval/*), but the learner announces none"),
        ("actuator:grpo.beta", HELD_OUT, "needs the actuator grpo.beta (actuator:grpo.beta), but the learner"),
        ("gpu:8", HELD_OUT, "needs 'gpu:8', which cannot be verified: use \"actuator:NAME\""),
        ("held_out", HELD_OUT, ""),
        ("metric:eval/*", HELD_OUT, ""),
        ("actuator:grad.clip", (), ""),
    ],
)
def test_an_unmet_need_bars(need: str, metrics: tuple[MetricSpec, ...], words: str) -> None:
    log = needing(need, metrics=metrics)
    adopt(log, {"web": 0.2, "code": 0.3, "math": 0.5}, MIX)
    assert log.verdict == ("rejected" if words else "adopted")
    assert words in log.last.reason
    adopt(log, 0.5)
    assert log.verdict == "adopted", "what needs nothing is not barred"


def test_a_restarted_learner_that_announces_it_meets_the_need() -> None:
    log = needing("held_out", LR)
    adopt(log, 0.5)
    assert log.verdict == "rejected"
    log.restart(metrics=HELD_OUT, requires=((LR, "held_out"),))
    adopt(log, 0.5)
    assert log.verdict == "adopted"


def refused(log: Log, actuator: str, status: str, value: float) -> Decision:
    """A decision of the next tick; if it is adopted the learner answers it with that status."""
    log.tick()
    log.propose("amy", value, actuator, 0.8)
    decision = log.last
    if decision.verdict == "adopted":
        log.receipt(decision, status)
    return decision


@pytest.mark.parametrize(
    ("actuator", "status", "third"),
    [
        (LR, "rejected", "rejected"),
        (LR, "skipped", "adopted"),  # another part of its plan was at fault
        ("run.rollback", "rejected", "adopted"),  # there was no snapshot; there may be one the next time
        ("run.rollback", "skipped", "adopted"),
    ],
)
def test_a_setting_that_the_learner_rejected_twice_is_not_adopted_again(actuator: str, status: str, third: str) -> None:
    log = Log()
    log.start(cooldown_ticks=0, alone={"amy": (LR, "run.rollback")})
    log.join("amy")
    log.tick(10)
    verdicts = [refused(log, actuator, status, value).verdict for value in (0.5, 0.25, 0.125)]
    assert verdicts == ["adopted", "adopted", third]
    assert third == "adopted" or "the learner rejected the last 2 changes" in log.last.reason


def test_a_least_change_of_zero_still_refuses_the_effective_value() -> None:
    log = Log.running("amy", "bob", least_change=0)
    adopt(log, 1.0)
    assert "no change" in log.last.reason


def test_a_log_with_an_unmet_need_and_a_contradiction_replays_to_the_same_bytes() -> None:
    log = needing("held_out", MIX, contradictions=(("grad.clip:up", LR),))
    adopt(log, {"web": 0.2, "code": 0.3, "math": 0.5}, MIX)
    assert "unmet: data.mixture" in log.last.reason
    adopt(log, 0.5)
    adopt(log, 2.0, "grad.clip")
    assert "contradiction: optimizer.lr_scale is in flight" in log.last.reason
    log.tick(2)
    log.end()
    replayed = replay(log.events, RUN)
    assert replayed.same and replayed.equal == replayed.decisions + len(log.ballots) and replayed.adopted == 1
