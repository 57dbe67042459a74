"""Votes that can be scored: what agents claimed against what became of it, by the event that they claimed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.support.mesh_log import LR, RUN, Log
from tests.support.replayed import left_behind

from oven_controller.cli.main import app
from oven_core.mesh.reputation import brier, claimed_probability, merit
from oven_runs.home.run_folder import Home
from oven_runs.log.vote_calibration import Claim, calibrate, collect_claims


def judged(log: Log, better: bool = True) -> Log:
    """A proposal that amy makes, bob backs and cy speaks against, and what came of it."""
    log.tick(5, loss=1.0)
    log.propose("amy", 0.5, confidence=0.9, target="loss", expected_change=-0.2, horizon=20)
    log.vote("bob", "for", confidence=0.6)
    log.vote("cy", "against", confidence=0.55)
    log.tick(3, loss=1.0)
    if log.verdict == "adopted":
        log.receipt(log.last)
    log.tick(24, loss=0.5 if better else 1.5)
    return log


def a_log(**rules: Any) -> Log:
    log = Log(stride=1)
    log.start(majority=0.6, alone=dict.fromkeys(("amy", "bob", "cy"), (LR,)), **rules)
    for agent in ("amy", "bob", "cy"):
        log.join(agent)
    return log


@pytest.mark.parametrize(("better", "y"), [(True, 1.0), (False, 0.0)])
def test_a_claim_is_the_probability_that_the_change_beats_doing_nothing(better: bool, y: float) -> None:
    scored_claims = collect_claims(judged(a_log(), better).outcomes)
    assert scored_claims == [Claim("amy", 0.9, y), Claim("bob", 0.6, y), Claim("cy", 1 - 0.55, y)]


def test_a_reputation_moves_on_the_success() -> None:
    for line in judged(a_log(), better=False).outcomes[0].lines:
        side = -1 if line.stance == "against" else 1
        p = claimed_probability(line.stance, line.confidence)
        score = 0.5 * side * (2 * line.success - 1) + 0.5 * (1 - 4 * brier(p, line.success))
        assert line.merit == pytest.approx(merit(line.stance, line.confidence, line.success))
        if line.stance != "for":  # what that earns counts half
            assert line.merit == pytest.approx(min(max(score, -1.0), 1.0))


def test_an_outcome_that_was_not_scored_is_not_a_claim() -> None:
    log = a_log()
    log.propose("amy", 0.5, confidence=0.9, target="loss")  # nothing was measured before it
    log.tick(3, loss=1.0)
    log.receipt(log.last)
    log.end()
    assert [outcome.scored for outcome in log.outcomes] == [False] and collect_claims(log.outcomes) == []


def test_the_table() -> None:
    table = calibrate([Claim("amy", 0.9, 1.0), Claim("amy", 0.95, 0.0), Claim("bob", 0.5, 0.5), Claim("bob", 1, 1)])
    assert [(row.low, row.count, row.y) for row in table.bins] == [(0.5, 1, 0.5), (0.9, 3, pytest.approx(2 / 3))]
    assert table.constant == pytest.approx(0.625) and table.constant_brier == pytest.approx(0.625 * 0.375)
    assert table.brier == pytest.approx((0.01 + 0.9025 + 0.25 + 0) / 4)


def output_of(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["calibration", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_the_command_reads_runs_and_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVEN_HOME", str(tmp_path))
    folder = left_behind(Home(tmp_path), judged(a_log()))
    by_name, by_path = (json.loads(output_of(source, "--json")) for source in (RUN, str(folder.export)))
    assert by_name | {"runs": []} == by_path | {"runs": []}
    assert (by_name["outcomes"], by_name["unscored"]) == (1, 0)
    assert by_name["agents"]["amy"]["brier"] == pytest.approx(0.01) and by_name["overall"]["count"] == 3
    table = output_of(RUN)
    assert "1 outcomes, 0 of them unscored" in table and "amy" in table and "0.9 to 1.0" in table
