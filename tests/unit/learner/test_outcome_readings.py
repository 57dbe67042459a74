"""The evaluations that the outcome of a decision needs are requested, within a budget."""

from typing import Any

from tests.support.decisions import decide

from oven_core.protocol.rules import Rules
from oven_learner.client.outcome_readings import TICKS_PER_EVALUATION, OutcomeReadings

RULES = Rules(autonomy="auto")


def request_ticks(readings: OutcomeReadings, ticks: range, every: int = 1000) -> list[int]:
    """Return the ticks whose step is evaluated on request, in a run that also evaluates every `every` ticks."""
    requested = []
    for tick in ticks:
        if readings.take_request(tick):
            requested.append(tick + 1)
        if (tick + 1) in requested or (tick + 1) % every == 0:
            readings.record(tick + 1)
    return requested


def decision(**changes: Any) -> Any:
    return decide(2.0).model_copy(update={"target": "eval/accuracy", "horizon": 30, **changes})


def test_the_second_half_of_the_horizon_gets_as_many_readings_as_an_outcome_needs() -> None:
    readings = OutcomeReadings(RULES, ["eval/accuracy"])
    readings.add(decision(), tick=10)
    assert request_ticks(readings, range(10, 100)) == [31, 36, 41]


def test_regular_evaluations_count() -> None:
    readings = OutcomeReadings(RULES, ["eval/accuracy"])
    readings.add(decision(), tick=10)
    assert request_ticks(readings, range(10, 100), every=5) == []


def test_a_decision_without_a_held_out_target_requests_nothing() -> None:
    readings = OutcomeReadings(RULES, ["eval/accuracy"])
    readings.add(decision(target="reward"), tick=10)
    assert request_ticks(readings, range(10, 100)) == []


def test_nothing_is_requested_if_agents_must_not_evaluate() -> None:
    rules = Rules(autonomy="auto", autonomy_of={"run.evaluate": "observe"})
    readings = OutcomeReadings(rules, ["eval/accuracy"])
    readings.add(decision(), tick=10)
    assert request_ticks(readings, range(10, 100)) == []


def test_many_decisions_do_not_exceed_the_budget() -> None:
    readings = OutcomeReadings(RULES, ["eval/accuracy"])
    requested: list[int] = []
    for tick in range(0, 400, 20):
        readings.add(decision(horizon=18), tick)
        requested += request_ticks(readings, range(tick, tick + 20))
    assert 10 < len(requested) <= RULES.outcome_samples + 400 // TICKS_PER_EVALUATION


def test_a_resumed_process_has_its_own_budget_and_not_that_of_earlier_ones() -> None:
    readings = OutcomeReadings(RULES, ["eval/accuracy"], first_tick=4000)
    requested: list[int] = []
    for tick in range(4000, 4100, 10):
        readings.add(decision(horizon=8), tick)
        requested += request_ticks(readings, range(tick, tick + 10))
    assert len(requested) == RULES.outcome_samples + 90 // TICKS_PER_EVALUATION


def test_an_evaluation_that_reports_nothing_is_not_requested_again() -> None:
    readings = OutcomeReadings(RULES, ["eval/accuracy"])
    readings.add(decision(), tick=10)
    assert [tick for tick in range(10, 1000) if readings.take_request(tick)] == [30]


def test_a_run_that_evaluates_its_initial_weights_gets_the_readings_before_its_first_decision() -> None:
    readings = OutcomeReadings(RULES, ["eval/accuracy"])
    readings.record(0)
    assert request_ticks(readings, range(1, 100)) == [3, 5]
