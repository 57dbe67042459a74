"""What a run's log teaches: read from a log that the real mesh wrote, with a window before and after the change."""

from __future__ import annotations

from tests.unit.mesh_log import LR, Log

from oven_controller.messages import OutcomeReport
from oven_controller.outcome_reports import OutcomeReports

SEEN = ("symptom:loss_spike", "kg:0123456789ab")


def reports(log: Log) -> list[OutcomeReport]:
    hearing = OutcomeReports("r")
    return [report for event in log.events if (report := hearing.hear(event)) is not None]


def changed(log: Log, evidence: tuple[str, ...], after: float, value: float = 0.5) -> None:
    for n in range(10):
        log.tick(loss=1.0 + 0.01 * (n % 3 - 1))
    log.propose("amy", value, LR, 0.8, target="loss", expected_change=-0.2, evidence=evidence)
    log.vote("bob", "for", actuator=LR)
    log.receipt(log.last)
    for n in range(10):
        log.tick(loss=after + 0.01 * (n % 3 - 1))


def test_a_scored_outcome_is_reported_with_its_change_and_its_symptoms() -> None:
    for after, success in ((0.5, 1.0), (1.0, 0.0), (3.0, 0.0)):
        log = Log.running("amy", "bob", outcome_ticks=10, cooldown_ticks=0)
        changed(log, SEEN, after)
        (found,) = reports(log)
        assert (found.changes, [s.id for s in found.symptoms]) == ((f"{LR}:down",), ["loss_spike"])
        assert found.success == success and found.id == f"r/{log.decisions[-1].id}" and found.at == 20


def test_the_same_log_tells_the_same_from_wherever_it_is_read_again() -> None:
    log = Log.running("amy", "bob", outcome_ticks=10, cooldown_ticks=0)
    changed(log, SEEN, 0.5)
    assert reports(log) == reports(log) != []


def test_what_nobody_named_a_symptom_for_teaches_nothing() -> None:
    log = Log.running("amy", "bob", outcome_ticks=10, cooldown_ticks=0)
    changed(log, (), 0.5)
    assert log.outcomes[0].scored and reports(log) == []
