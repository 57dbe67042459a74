"""`decisions` and `explain`: rows, filters, ids by their beginning, cited paths, other rules, bad input."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
from tests.support.mesh_log import LR, NOON
from tests.support.monitor_log import decided, recorded
from tests.support.own_home import invoke, own_home

from oven_core.errors import ConfigError, UnknownNameError
from oven_core.protocol.messages import BallotOpened
from oven_runs.home.run_folder import Home
from oven_runs.log.cited_paths import cited_paths, parse_path
from oven_runs.log.decision_row import DecisionRow
from oven_runs.log.explanation import Explanations
from oven_runs.log.explanation_report import ExplanationReport
from oven_runs.log.since_option import Since

EVENTS = recorded()
RAISED, MIXED, VETOED, BACK = decided(EVENTS)


def folded() -> Explanations:
    seen = Explanations()
    for event in EVENTS:
        seen.feed(event)
    return seen


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    home = own_home(tmp_path, monkeypatch)
    home.create("r", recipe="grpo").export.write_text("".join(event.line() + "\n" for event in EVENTS))
    return home


def test_a_row_has_proposer_change_verdict_and_outcome(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke("decisions", "r") == 0
    head, first, *_, last = capsys.readouterr().out.splitlines()
    assert head.split() == ["step", "who", "what", "verdict", "id,", "receipt,", "outcome"]
    assert (
        first.split("  ")[-1]
        .strip()
        .startswith(f"{RAISED.id}; applied 4 at step 16; reward +0.163 ± 0.018, forecast +0.05")
    )
    assert f"prior             run.rollback – → 60                       adopted    {BACK.id}; applied 89" in last
    assert invoke("decisions", "r", "--json") == 0
    rows = [DecisionRow.model_validate_json(line) for line in capsys.readouterr().out.splitlines()]
    assert [row.id for row in rows] == [d.id for d in (RAISED, MIXED, VETOED, BACK)]
    assert (rows[0].who, rows[0].after, rows[0].receipt_step, rows[0].scored) == ("lr", 4.0, 16, True)
    assert rows[1].receipt == "rejected" and rows[2].receipt is None and rows[2].verdict == "rejected"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--since", "85"], [VETOED, BACK]),
        (["--since", "1m"], [VETOED, BACK]),
        (["--actuator", LR], [RAISED, VETOED]),
        (["--agent", "curriculum"], [MIXED]),
        (["--verdict", "rejected"], [VETOED]),
        (["--agent", "lr", "--verdict", "adopted", "--since", "16"], [BACK]),
    ],
)
def test_filters(home: Home, capsys: pytest.CaptureFixture[str], options: list[str], expected: list[object]) -> None:
    assert invoke("decisions", "r", "--json", *options) == 0
    ids = [json.loads(line)["id"] for line in capsys.readouterr().out.splitlines()]
    assert ids == [decision.id for decision in expected]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["decisions", "r", "--since", "soon"], "'soon' is neither a step nor a duration; write a step such as 120"),
        (["decisions", "r", "--actuator", "optimizer.lr"], f"did you mean '{LR}'?"),
        (["decisions", "r", "--agent", "curiculum"], "did you mean 'curriculum'?"),
        (["explain", "0", "--run", "r"], "ids begin with '0': "),
        (["explain", "grad.clip", "--run", "r"], "no decision named 'grad.clip'"),
        (["explain", LR, "--run", "r", "--set", "rules.majorty=0.5"], "did you mean 'rules.majority'?"),
    ],
)
def test_bad_input(home: Home, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert invoke(*arguments) == 2
    assert message in capsys.readouterr().err


def test_a_log_cut_in_half_is_refused_with_its_readable_part(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    path = home.find("r").export
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    for command in (["decisions", "r"], ["explain", LR, "--run", "r"]):
        assert invoke(*command) == 2
        assert "lines before it are intact, up to tick " in capsys.readouterr().err


def test_an_id_can_be_abbreviated() -> None:
    seen = folded()
    for name in (RAISED.id, RAISED.ballot, "25", "25-00", "0000000000250"[:-1]):
        assert seen.find(name).decision is RAISED
    for name in ("7", ""):
        with pytest.raises(UnknownNameError):
            seen.find(name)
    assert seen.find(LR).decision is RAISED  # the newest that passed
    with pytest.raises(ConfigError, match=r"enter more of the id"):
        seen.find("1")


def test_an_open_ballot_is_explained_with_its_votes() -> None:
    seen = folded()
    opened = next(event.body for event in reversed(EVENTS) if isinstance(event.body, BallotOpened))
    with pytest.raises(
        ConfigError, match=r"still open, .* at tick 155; votes so far: supervisor-with-a-long-name propose"
    ):
        seen.find(opened.id)


def test_explain_has_votes_and_cited_paths(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke("explain", "25", "--run", "r") == 0
    output = capsys.readouterr().out
    assert "prior: for 4 at 0.60, weight 0.6: slow progress with aligned gradients is most often a step that" in output
    assert "lr: propose 4 at 0.90, weight 0.9, expects reward +0.05 within 20 ticks: gradients agree" in output
    path = ["slow_progress", "  ↑ CAUSES", "lr_too_low", "  ↑ SOLVES", "raise_lr (grade A)"]
    assert "\n".join(f"    {line}" for line in path) in output
    assert invoke("explain", "25", "--run", "r", "--json") == 0
    report = ExplanationReport.model_validate_json(capsys.readouterr().out)
    assert report.votes["prior"].evidence[0] == "symptom:slow_progress" and report.other_rules is None
    assert report.paths[0].nodes == ("slow_progress", "lr_too_low", "raise_lr")
    assert report.paths[0].agents == ("prior",) and report.receipt is not None and report.outcome is not None


def test_explain_can_decide_under_other_rules(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke("explain", VETOED.id, "--run", "r", "--set", "rules.veto_confidence=0.95") == 0
    output = capsys.readouterr().out
    assert "with rules.veto_confidence = 0.95: rejected 2 at tick 85" not in output
    assert "with rules.veto_confidence = 0.95: " in output
    assert invoke("explain", "25", "--run", "r", "--set", "rules.veto_confidence=0.95", "--json") == 0
    assert json.loads(capsys.readouterr().out)["other_rules"]["same"] is True
    assert invoke("explain", BACK.id, "--run", "r", "--set", "rules.autonomy=advise", "--json") == 0
    report = json.loads(capsys.readouterr().out)["other_rules"]
    assert report["decision"]["verdict"] == "advised" and report["earlier_divergence"] == f"{LR} at tick 15"


def test_paths_are_parsed_from_evidence() -> None:
    text = "loss_spike ← CAUSES ← lr_too_high ← SOLVES ← lower_lr (a with b)"
    path = parse_path(f"for: {text} [C001 S001; D; own-faults other]")
    assert path is not None and path.text == text.removesuffix(" (a with b)")
    assert (path.role, path.grade, path.remark) == ("for", "D", "a with b")
    assert path.edges == ("C001", "S001") and path.sources == ("own-faults", "other")
    needs = parse_path("against: lower_lr → REQUIRES → metric:lr [R1; A; s]")
    assert needs is not None and not needs.backwards and needs.diagram()[1] == "  ↓ REQUIRES R1"
    for invalid in ("symptom:loss_spike", "kg:0123456789ab", "", "for: ", "a ← b", "[;;]", "x [a; b; c]"):
        assert parse_path(invalid) is None
    assert cited_paths({}) == ()


def test_since_is_a_step_or_a_time_before_the_newest_event() -> None:
    assert Since.parse(None) == Since.parse("") == Since()
    assert Since.parse("120").includes(120, NOON, NOON) and not Since.parse("120").includes(119, NOON, NOON)
    half = Since.parse("1.5h")
    assert half.includes(0, NOON, NOON + timedelta(minutes=90)) and not half.includes(
        0, NOON, NOON + timedelta(minutes=91)
    )
    for text in ("-1", "1w", "²", "1" * 16, "٣", "1e3", "nan", "infs"):
        with pytest.raises(ConfigError, match="neither a step nor a duration"):
            Since.parse(text)
