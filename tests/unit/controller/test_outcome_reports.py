"""What a run's log teaches: read from a log that the real mesh wrote, with a window before and after the change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.mesh_log import LR, SPECS, Log
from tests.support.replayed import left_behind

from oven_core.errors import ConfigError
from oven_core.protocol.actions import EVALUATE
from oven_core.protocol.announcements import ActuatorAnnounced
from oven_core.protocol.graph_requests import OutcomeReport
from oven_kg.cli.training_commands import LEARN
from oven_kg.service.posterior_store import read
from oven_runs.home.run_folder import Home
from oven_runs.log.outcome_reports import OutcomeReports

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
    for after, success in ((0.5, 1.0), (1.0, 0.5), (3.0, 0.0)):  # where nothing shows the odds are even
        log = Log.running("amy", "bob", outcome_ticks=10, cooldown_ticks=0)
        changed(log, SEEN, after)
        (found,) = reports(log)
        assert (found.changes, [s.id for s in found.symptoms]) == ((f"{LR}:down",), ["loss_spike"])
        assert found.success == pytest.approx(success, abs=0.05)
        assert found.id == f"r/{log.decisions[-1].id}" and found.at == 20


def test_the_same_log_tells_the_same_from_wherever_it_is_read_again() -> None:
    log = Log.running("amy", "bob", outcome_ticks=10, cooldown_ticks=0)
    changed(log, SEEN, 0.5)
    assert reports(log) == reports(log) != []


@pytest.mark.parametrize("later", [False, True], ids=["announced at the start", "announced later"])
def test_what_was_carried_out_at_one_tick_is_one_plan_and_a_measurement_no_part_of_it(later: bool) -> None:
    log, actions = Log(), [spec for spec in SPECS if later and spec.kind == "action"]
    log.start(tuple(spec for spec in SPECS if spec not in actions), outcome_ticks=10, cooldown_ticks=0)
    for agent in ("amy", "bob"):
        log.join(agent)
    for spec in actions:
        log.put("run", ActuatorAnnounced(**log.stamp(), actuator=spec, tick=0, step=0))
    for n in range(10):
        log.tick(loss=1.0 + 0.01 * (n % 3 - 1))
    decisions = []
    wanted = ((3.0, "run.rollback", "loss_spike"), (0.5, LR, "gradients_opposed"), (None, EVALUATE, "loss_spike"))
    for value, actuator, symptom in wanted:
        seen = (f"symptom:{symptom}",)
        log.propose("amy", value, actuator, 0.8, target="loss", expected_change=-0.2, evidence=seen)
        log.vote("bob", "for", actuator=actuator)
        decisions.append(log.last)
    for decision in decisions:
        log.receipt(decision)
    for n in range(12):
        log.tick(loss=0.5 + 0.01 * (n % 3 - 1))
    found = reports(log)
    assert found and {report.changes for report in found} == {(f"{LR}:down", "run.rollback")}
    assert {report.id for report in found} == {f"r/{decisions[0].id}"}
    assert {s.id for s in found[-1].symptoms} == {"loss_spike", "gradients_opposed"}


def test_the_command_adds_what_recorded_runs_teach_to_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OVEN_HOME", str(tmp_path / "home"))
    log = Log(stride=1)
    log.start(outcome_ticks=10, cooldown_ticks=0)
    for agent in ("amy", "bob"):
        log.join(agent)
    changed(log, SEEN, 0.5)
    left_behind(Home(), log)
    path = tmp_path / "learnt.json"
    for added in (1, 0):
        assert LEARN.run(["r", "--to", str(path), "--half-life", "500", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["outcomes"], found["added"]) == (1, added)
    known = read(path)
    assert known.half_life == 500 and list(known.reports.values()) == reports(log)
    path.write_text("{}")
    with pytest.raises(ConfigError, match="these are not posteriors"):
        LEARN.run(["r", "--to", str(path)])


def test_what_nobody_named_a_symptom_for_teaches_nothing() -> None:
    log = Log.running("amy", "bob", outcome_ticks=10, cooldown_ticks=0)
    changed(log, (), 0.5)
    assert log.outcomes[0].scored and reports(log) == []
