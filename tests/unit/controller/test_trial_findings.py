"""What the folds and the lines say of trials, over logs that the real mesh wrote."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
from tests.support.mesh_log import LR, NOON
from tests.support.trial_log import READING, TrialRecording, begun, two_trials, under_way

from oven_controller.cli.main import run
from oven_controller.stack.line_output import Headless
from oven_core.errors import UnknownNameError
from oven_core.protocol.events import Event
from oven_core.protocol.messages import Decision, Outcome
from oven_core.protocol.trial_messages import TrialEnded, TrialStarted
from oven_runs.home.run_folder import Home
from oven_runs.log.counterfactual import OpenLoop
from oven_runs.log.explanation import Explanations
from oven_runs.log.mesh_report import lines, report_of
from oven_runs.log.replay import Replay, replay
from oven_runs.log.run_summary import RunSummary
from oven_runs.log.trial_findings import Trials
from oven_runs.log.vote_calibration import claims

EVENTS = two_trials()


def folded(events: list[Event]) -> Trials:
    trials = Trials()
    for event in events:
        trials.feed(event.body)
    return trials


def viewed(events: list[Event]) -> RunSummary:
    view = RunSummary()
    for event in events:
        view.feed(event)
    return view


def after(kept: int = 1, gain: float | None = 0.12, refused: str = "") -> str:
    """What is said of the change after one trial that ended so."""
    log = begun()
    log.end_trial(kept, gain, refused=refused)
    return folded(log.events).by_id[log.order.id].finding(1)


def test_a_finding_has_the_difference_its_error_and_its_price() -> None:
    assert after(1, 0.1234) == f"kept: +0.123 ± 0.021 {READING} for 12 extra steps"
    assert after(0, -0.0431) == f"not kept: -0.043 ± 0.021 {READING} for 12 extra steps"
    assert after(0, None) == "not kept: it was not read"
    assert after(0, float("nan")) == f"not kept: +nan ± 0.021 {READING} for 12 extra steps"
    assert after(refused="nothing is held out") == "not tried: nothing is held out"


def test_where_lower_is_better_a_fall_is_a_fall() -> None:
    log = begun()
    log.end_trial(1, 0.12)
    trial = folded(log.events).by_id[log.order.id]
    assert trial.difference(1) == "+0.120 ± 0.021"
    falling = [
        Event.read(e.seq, e.subject, e.data.replace(b'"better":"up"', b'"better":"down"'), e.time) for e in log.events
    ]
    assert folded(falling).by_id[log.order.id].difference(1) == "-0.120 ± 0.021"


def test_the_progress_counts_arms_and_steps() -> None:
    log = begun()
    assert folded(log.events).open.progress == "trial: control, step 0 of 8"  # type: ignore[union-attr]
    log.branch(0)
    log.branch(1, 5)
    assert folded(log.events).open.progress == "trial: arm 1 of 1, step 5 of 8"  # type: ignore[union-attr]


def test_a_trial_that_the_learner_did_not_survive_has_no_result() -> None:
    log = begun()
    log.branch(0, 3)
    log.incarnation, log.n = 2, 0
    log.begin()
    trials = folded(log.events)
    assert trials.open is None and trials.counts(60) == ""
    assert trials.by_id[log.order.id].finding(1) == "no result: the learner started again during the trial"


def test_a_tried_decision_is_adopted_when_its_receipt_says_applied_and_not_before() -> None:
    halfway = viewed(under_way())
    assert (halfway.adopted, halfway.not_kept, halfway.agents["lr"].backed) == (0, 0, 0)
    assert [decision.actuator for decision in halfway.trying.values()] == [LR]
    view = viewed(EVENTS)
    assert (view.adopted, view.not_kept, view.trying, view.agents["lr"].backed) == (1, 1, {}, 1)
    assert view.knobs[LR] == 0.4
    assert view.trials.counts(view.tick) == f"2 trials, 1 kept, 24 steps thrown away of {view.tick + 24}"


def test_no_figure_of_the_run_has_a_step_of_a_branch_in_it() -> None:
    without = [event for event in EVENTS if event.subject.rsplit(".", 1)[-1] != "branch"]
    view, plain = viewed(EVENTS), viewed(without)
    for name in ("tick", "step", "observations", "progress", "metrics", "first", "still", "knobs"):
        assert getattr(view, name) == getattr(plain, name), name
    halfway, plain = viewed(under_way()), viewed(begun().events)
    assert (halfway.tick, halfway.metrics) == (plain.tick, plain.metrics)


def test_a_trial_is_a_line_when_it_begins_and_one_when_it_ends() -> None:
    out: list[str] = []
    report = Headless(out.append, NOON - timedelta(seconds=1))
    for event in EVENTS:
        report.event(event)
    said = [line.split(" s  ", 1)[1] for line in out if " s  trial " in line]
    assert said == [
        f"trial    of {LR} 0.4 against the control: 8 steps each and 2 of cool-down, compared by {READING}",
        f"trial    {LR} 0.4 kept: +0.120 ± 0.021 {READING} for 12 extra steps (3.14 s)",
        f"trial    of {LR} 1.5 against the control: 8 steps each and 2 of cool-down, compared by {READING}",
        f"trial    {LR} 1.5 not kept: -0.043 ± 0.021 {READING} for 12 extra steps (3.14 s)",
    ]
    summary = "\n".join(report.summary())
    assert "decisions: 1 adopted, 0 rejected, 1 tried and not kept" in summary
    assert f"2 trials, 1 kept, 24 steps thrown away of {report.view.tick + 24}" in summary


def test_a_refused_trial_says_why() -> None:
    log, out = begun(), list[str]()
    report = Headless(out.append, NOON)
    log.end_trial(refused="the run is held")
    for event in log.events:
        report.event(event)
    assert any(line.endswith("trial    refused: the run is held") for line in out)
    assert report.view.trials.counts(50) == "0 trials, 0 kept, 1 refused, 0 steps thrown away of 50"


def test_a_replay_counts_what_was_tried_and_adopts_what_was_kept() -> None:
    found = replay(EVENTS, "r")
    assert found.same and (found.decisions, found.tried, found.adopted) == (2, 2, 1)
    again = Replay("r")
    for event in under_way():
        again.take(event)
    told = report_of(again.mesh)
    assert told["trial"]["arms"] == ["control", f"{LR} 0.4"] and told["adopted"] == 0
    assert any("is under way: control against" in line for line in lines(told))


def test_other_rules_over_a_log_with_trials() -> None:
    same, off = OpenLoop("r"), OpenLoop("r", lambda rules: rules.model_copy(update={"trials": "off"}))
    for event in EVENTS:
        same.take(event)
        off.take(event)
    assert (same.divergences(), same.ignored_receipts) == ([], 0)
    first = off.divergences()[0]
    assert first.logged is not None and first.computed is not None
    assert (first.logged.verdict, first.computed.verdict) == ("tried", "adopted")


def test_a_trial_that_the_recording_does_not_have_is_given_up_at_once() -> None:
    """Else no other could ever be ordered."""
    log = TrialRecording()
    log.join("lr", moves=(LR,), speciality=(LR,))
    log.begin()
    log.observe(50)
    log.try_out(0.4)
    log.observe(30)
    log.try_out(3.0)
    recorded = [event for event in log.events if not isinstance(event.body, TrialStarted)]
    loop = OpenLoop("r")
    for event in recorded:
        loop.take(event)
    assert [decision.verdict for decision in loop.computed] == ["tried", "tried"]


def test_a_measured_outcome_is_held_against_the_confidence_whether_kept_or_not() -> None:
    outcomes = [event.body for event in EVENTS if isinstance(event.body, Outcome)]
    assert [(claim.agent, claim.p, claim.y > 0.5) for claim in claims(outcomes)] == [
        ("lr", 0.9, True),
        ("lr", 0.9, False),
    ]


def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run's log in a folder of its own."""
    monkeypatch.setenv("OVEN_HOME", str(tmp_path / "home"))
    folder = Home().create("r", recipe="grpo")
    folder.export.write_text("".join(event.line() + "\n" for event in EVENTS))


def command(*arguments: str) -> int | str | None:
    """Its exit code."""
    with pytest.raises(SystemExit) as ended:
        run(arguments)
    return ended.value.code


def test_explain_says_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stored(tmp_path, monkeypatch)
    tried = [event.body for event in EVENTS if isinstance(event.body, Decision)]
    assert command("explain", tried[0].id, "--run", "r") == 0
    said = capsys.readouterr().out
    assert f"kept: +0.120 ± 0.021 {READING} for 12 extra steps" in said
    assert "20 steps computed, 12 of them thrown away, in 3.14 s" in said
    assert f"arm 1, {LR} 0.4: {READING} 0.62 ± 0.03 over 64 examples; +0.120 ± 0.021 against the control; kept" in said
    assert "receipt: applied, 1 → 0.4" in said
    assert command("explain", LR, "--run", "r", "--json") == 0  # the newest on it
    found = json.loads(capsys.readouterr().out)
    assert found["decision"]["id"] == tried[1].id and found["receipt"]["status"] == "skipped"
    assert found["trial"]["finding"] == f"not kept: -0.043 ± 0.021 {READING} for 12 extra steps"
    assert found["outcome"]["measured"] is True
    assert command("explain", "grad.clip", "--run", "r") == UnknownNameError.exit_code
    assert f"no decision named 'grad.clip'; known: {LR}" in capsys.readouterr().err


def test_status_counts_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stored(tmp_path, monkeypatch)
    assert command("status", "r") == 0
    said = capsys.readouterr().out
    assert "decisions: 1 adopted, 0 rejected, 1 tried and not kept" in said and "2 trials, 1 kept" in said
    assert command("status", "r", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["trials"]["steps_thrown_away"] == 24 and found["decisions"]["trying"] == {}


def test_a_decision_without_a_trial_is_explained_without_one() -> None:
    log = TrialRecording()
    log.join("lr", moves=("run.hold",), speciality=("run.hold",))
    log.begin()
    log.observe(3)
    log.say("lr", "propose", "run.hold", confidence=0.9, rationale="reward is broken")
    log.observe(5)
    seen = Explanations()
    for event in log.events:
        seen.feed(event)
    found = seen.find("run.hold")
    assert found is not None and found.trial is None and found.receipt is not None
    assert not any(isinstance(event.body, TrialEnded) for event in log.events)
