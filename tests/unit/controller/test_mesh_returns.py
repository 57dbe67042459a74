"""Rollbacks that lead to one place again and again: no third without a better reading, none where one did harm."""

from typing import Any

from tests.support.mesh_log import Log

from oven_core.mesh.limits import MAX_ROLLBACKS, RollbackLimits
from oven_core.protocol.messages import Decision, MetricSpec, Receipt

BACK, EVAL = "run.rollback", MetricSpec(name="eval/loss", better="down", held_out=True)
LOSS = MetricSpec(name="loss", better="down")


def running(*metrics: MetricSpec, **rules: Any) -> Log:
    log = Log()
    log.start(metrics=metrics or (LOSS, EVAL), cooldown_ticks=0, alone={"amy": (BACK,)}, **rules)
    log.join("amy")
    return log


def back(log: Log, to_tick: int, step: int) -> Decision:
    """Asked for by tick; carried out to that step."""
    log.propose("amy", float(to_tick), BACK, 0.8)
    decision = log.last
    if decision.verdict == "adopted":
        log.receipt(decision, after=float(step))
    return decision


def test_a_third_rollback_to_one_place_is_refused() -> None:
    log = running()
    log.tick(10, loss=1.0)
    log.tick(**{"eval/loss": 2.0})
    verdicts = []
    for _ in range(4):
        log.tick(5, loss=1.0)
        verdicts.append(back(log, 10, 10).verdict)
    assert verdicts == ["adopted"] * MAX_ROLLBACKS + ["rejected"] * 2
    assert "no held-out reading has improved since; the limit is 2" in log.last.reason
    log.tick(**{"eval/loss": 2.5})
    assert back(log, 10, 10).verdict == "rejected", "a worse reading is no reason"
    log.tick(**{"eval/loss": 1.9})
    assert back(log, 10, 10).verdict == "adopted"


def test_a_rollback_further_back_is_allowed() -> None:
    log = running()
    log.tick(30, loss=1.0)
    log.tick(**{"eval/loss": 2.0})
    for _ in range(MAX_ROLLBACKS):
        log.tick(5, loss=1.0)
        assert back(log, 25, 25).verdict == "adopted"
    log.tick(5, loss=1.0)
    assert back(log, 28, 25).verdict == "rejected", "what lies behind them leads to the same copy, or through it"
    assert back(log, 12, 10).verdict == "adopted"


def test_without_held_out_readings_the_run_has_to_come_further() -> None:
    log = running(LOSS)
    log.tick(20, loss=1.0)
    for _ in range(MAX_ROLLBACKS):
        assert back(log, 10, 10).verdict == "adopted"
        log.tick(10, loss=1.0)
    assert back(log, 10, 10).verdict == "rejected" and "the run has got no further" in log.last.reason
    log.tick(15, loss=1.0)
    assert back(log, log.mesh.state.tick - 2, 30).verdict == "adopted"


def test_a_harmful_rollback_is_not_repeated() -> None:
    log = running(LOSS, EVAL, outcome_ticks=10)
    log.tick(**{"eval/loss": 2.0})
    for n in range(20):
        log.tick(loss=1.0 + 0.01 * (n % 3))
    log.propose("amy", 10.0, BACK, 0.8, target="loss", expected_change=-0.1)
    log.receipt(log.last, after=10.0)
    for n in range(12):
        log.tick(loss=5.0 + 0.01 * (n % 3))
    assert log.outcomes[-1].beat == 0.0
    assert back(log, 10, 10).verdict == "rejected" and "did harm" in log.last.reason


def test_nan_is_not_a_better_reading() -> None:
    returns = RollbackLimits()
    returns.observe(1, 1, -2.0)
    for tick, reading in ((2, float("nan")), (3, float("inf"))):
        returns.observe(tick, tick, reading)
    for n in range(MAX_ROLLBACKS):
        returns.add(
            Receipt(
                incarnation=1, n=n, decision_id=str(n), actuator=BACK, status="applied",
                before=3.0, after=1.0, tick=3 + n, step=1,
            )
        )  # fmt: skip
    assert returns.refusal_reason(2)


def test_a_restart_of_the_same_training_keeps_its_rollbacks() -> None:
    log = running()
    log.tick(10, loss=1.0)
    log.tick(**{"eval/loss": 2.0})
    for _ in range(MAX_ROLLBACKS):
        log.tick(5, loss=1.0)
        back(log, 10, 10)
    log.restart(tick=log.mesh.state.tick, metrics=(LOSS, EVAL), cooldown_ticks=0, alone={"amy": (BACK,)})
    log.join("amy")
    log.tick(5, loss=1.0)
    assert back(log, 10, 10).verdict == "rejected"


def test_another_training_has_its_own_rollbacks_and_budget() -> None:
    log = running(max_interventions=MAX_ROLLBACKS)
    log.tick(10, loss=1.0)
    log.tick(**{"eval/loss": 2.0})
    for _ in range(MAX_ROLLBACKS):
        log.tick(5, loss=1.0)
        back(log, 10, 10)
    log.join("bob")  # who says nothing, so that the ballot stays open
    log.propose("amy", 10.0, BACK, 0.8)
    log.restart(tick=log.mesh.state.tick, metrics=(LOSS, EVAL), training="2", **log.mesh.state.rules.model_dump())
    assert log.last.verdict == "rejected" and "training 2 started" in log.last.reason
    log.status("bob", "left")
    log.step = 0
    log.tick(10, loss=1.0)
    assert back(log, log.mesh.state.tick - 5, 5).verdict == "adopted"
