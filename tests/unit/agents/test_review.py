"""All agents over one finished run: the same votes however they are asked, and a report that says what it rests on."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar
from xml.etree import ElementTree

import pytest
from tests.support.mesh_log import LR, RUN, Log
from tests.support.own_home import invoke, own_home
from tests.unit.agents.test_backtest import Cutter

from oven_agents import Agent as Base
from oven_agents import Notice, Vote, Window
from oven_agents.review import html_page
from oven_agents.review.flagged_proposals import Flag, Series, judge
from oven_agents.review.open_loop_replay import CastVote, OpenLoopReplay
from oven_agents.review.report import Report, text_lines
from oven_agents.review.review_command import review
from oven_controller.cli.review import _start_change
from oven_controller.importing.import_run import read_source
from oven_core.protocol.messages import MetricSpec
from oven_runs.home.run_folder import Home


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    return own_home(tmp_path, monkeypatch)


def table(path: Path, rows: int, *, reward: bool = False, spikes: Iterable[tuple[int, int]] = ()) -> Path:
    """A training that learns, with stretches in which loss and gradient jump."""
    rng, lines = random.Random(5), ["step,loss,learning_rate,grad_norm,eval/loss" + ",reward,kl,entropy" * reward]
    for step in range(1, rows + 1):
        bad = any(begins <= step < begins + length for begins, length in spikes)
        level = 2 + 2 * math.exp(-3 * step / rows)
        cells = [level + 2 * bad + rng.gauss(0, 0.03), 3e-4, (6 if bad else 1) * math.exp(rng.gauss(0, 0.2))]
        cells.append(level + rng.gauss(0, 0.01) if step % 50 == 0 else math.nan)
        if reward:
            gone = step > 0.9 * rows
            cells += [0.01 if gone else 0.6, 0.5 if gone else 0.05, 0.2 if gone else 1 + rng.gauss(0, 0.01)]
        lines.append(f"{step}," + ",".join("" if math.isnan(cell) else f"{cell:.6g}" for cell in cells))
    path.write_text("\n".join(lines) + "\n")
    return path


def reviewed(path: Path, agents: dict[str, Base]) -> Report:
    with read_source(path, {}).rows as rows:
        return review(RUN, lambda: rows.events(RUN), agents, _start_change({}, [], True, list(agents)))


class Second(Cutter):
    """Not sure by itself; a second voice beside another's."""

    sure = 0.55


class SecondByGradients(Second):
    """The same, from another signal."""

    reads, sure = ("grad_norm",), 0.6


def test_two_agents_with_other_evidence_are_a_quorum() -> None:
    log = Log(stride=1)
    log.start(metrics=(MetricSpec(name="loss"),))
    log.tick(6)
    pair = {"a": Second(), "b": Second()}
    pair_with_other_evidence = {"a": Second(), "b": SecondByGradients()}
    for agents, verdict in (({"a": Second()}, "rejected"), (pair, "rejected"), (pair_with_other_evidence, "adopted")):
        panel = OpenLoopReplay(RUN, agents)
        for event in log.events:
            panel.add(event)
        assert {proposal.decision.verdict for proposal in panel.proposals if proposal.decision} == {verdict}
        assert len(panel.proposals) == len(agents)


class Raises(Base):
    moves: ClassVar[tuple[str, ...]] = (LR,)

    def vote(self, window: Window) -> Vote | None:
        if window.tick > 100:
            raise RuntimeError("no such thing")
        return (
            window.propose(LR, 0.5, confidence=0.9, why="so", target="loss", horizon=4) if window.tick == 50 else None
        )


def test_an_agent_that_raises_is_asked_no_more_and_reported(tmp_path: Path) -> None:
    source = table(tmp_path / "a.csv", 600)
    report = reviewed(source, {"bad": Raises()})
    assert [flag.tick for flag in report.flags] == [50]
    assert (
        report.cannot_fire["bad"]
        == "raised an error on 20 consecutive windows, most recently RuntimeError: no such thing"
    )


class Tells(Base):
    """Says how much it has heard, at a few ticks."""

    def vote(self, window: Window) -> Notice | None:
        text = f"{len(window.observations)} observations, {len(window.series('loss'))} losses"
        return Notice(f"tick {window.tick}", text) if window.tick in (3, 5, 8) else None


def test_another_training_begins_with_an_empty_window_and_notices_are_reported() -> None:
    log = Log(stride=1)
    log.start(metrics=(MetricSpec(name="loss"),), training="1")
    log.tick(4, loss=1.0)
    log.restart(metrics=(MetricSpec(name="loss"),), training="2", tick=4)
    log.tick(4, loss=2.0)
    events = log.events
    report = review(RUN, lambda: events, {"t": Tells()})
    losses = [(3, "3 observations, 3 losses"), (5, "1 observations, 1 losses"), (8, "4 observations, 4 losses")]
    assert [(step, text) for step, _, text in report.notices] == losses
    assert "notice at step 5, t: 1 observations, 1 losses" in text_lines(report)
    assert "1 observations, 1 losses" in html_page.render(report)


def cast_vote(tick: int, value: float = 0.5, actuator: str = LR, agent: str = "a", **more: Any) -> CastVote:
    body: dict[str, Any] = {"target": "loss", "horizon": 10, "confidence": 0.7, "rationale": "so", "stance": "propose"}
    vote = Vote.model_validate(body | {"actuator": actuator, "value": value, "tick": tick} | more)
    return CastVote(agent, vote, tick, tick, None if actuator == "run.rollback" else 1.0)


STEADY = [2 + 0.01 * (-1) ** tick for tick in range(200)]


@pytest.mark.parametrize(
    ("values", "flag", "changes", "likely", "words"),
    [
        (STEADY, [cast_vote(100)], [], "false alarm", "stayed the same without the change"),
        (
            [v - 0.01 * t for t, v in enumerate(STEADY)],
            [cast_vote(100)],
            [],
            "false alarm",
            "improved without the change",
        ),
        ([v + (t > 98) for t, v in enumerate(STEADY)], [cast_vote(100)], [], "harm", "it got worse"),
        (
            [v + (t > 98) for t, v in enumerate(STEADY)],
            [cast_vote(100), cast_vote(100, 90, "run.rollback")],
            [],
            "harm",
            "worse",
        ),
        # what was high for a while before the flag is not the level to compare with
        (
            [v + (t > 90) for t, v in enumerate(STEADY)],
            [cast_vote(100, 88, "run.rollback")],
            [],
            "harm",
            "it got worse",
        ),
        (
            [v + (95 < t < 103) for t, v in enumerate(STEADY)],
            [cast_vote(100, 94, "run.rollback")],
            [],
            "false alarm",
            "stayed the same",
        ),
        (
            [math.nan if t > 100 else v for t, v in enumerate(STEADY)],
            [cast_vote(100)],
            [],
            "harm",
            "loss was nan within 10",
        ),
        (STEADY, [cast_vote(100)], [(104, "x was changed")], "unknown", "x was changed before its horizon ended"),
        (
            STEADY,
            [cast_vote(100, evidence=("symptom:gradients_aligned",))],
            [],
            "unknown",
            "the run was only slow",
        ),
        (STEADY, [cast_vote(100, target="")], [], "unknown", "it has no target"),
        (STEADY, [cast_vote(100, target="eval/loss")], [], "unknown", "eval/loss was not measured"),
        (STEADY[:104], [cast_vote(100)], [], "unknown", "measured too rarely after it"),
        (STEADY, [cast_vote(1)], [], "unknown", "measured too rarely before it"),
    ],
)
def test_what_looks_like_a_false_alarm(
    values: list[float], flag: list[CastVote], changes: list[tuple[int, str]], likely: str, words: str
) -> None:
    series = Series(list(range(len(values))), values)
    metrics = {"loss": MetricSpec(name="loss", better="down")}
    result, afterwards = judge(Flag("a", [flag]), metrics, {"loss": series}, changes, 3)
    assert result == likely and words in afterwards


def test_the_commands_report(tmp_path: Path, capsys: Any) -> None:
    table(tmp_path / "old run.csv", 1300, spikes=((300, 200), (900, 6)))
    assert invoke("review", "old run.csv", "--agent", "all", "--html", "r.html") == 0
    out = capsys.readouterr().out
    assert out.startswith("old-run-csv: 2 flags in 1,300 ticks (steps 1 to 1,300), 2 would")
    assert all(len(line) <= 80 for line in out.splitlines())
    words = " ".join(out.split())
    assert "1 looks like a false alarm, the run got worse after 1, 0 unknown" in words
    assert "1. step 305 (tick 305), divergence: run.rollback to tick 298, data.skip 100 why: loss jumped from" in words
    assert "cannot fire: " in words and "learning_rate, " in words and "without the change" in words
    assert "the run publishes no optim/grad_momentum_cos" in (tmp_path / "r.html").read_text()
    assert "knobs assumed, as in an attached run: run.rollback, data.skip;" in words
    assert not (tmp_path / "home").exists(), "nothing is left behind"

    text = (tmp_path / "r.html").read_text()
    page = ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>"))
    marks = [len(page.findall(f".//svg/g[@class='{what}']")) for what in ("harm", "alarm", "unknown")]
    assert len(page.findall(".//svg")) == 4 and marks == [4, 4, 0]
    assert not re.search(r"https?://|<script|@import|url\(|<link|<img", text)

    options = ["--json", "--agent", "divergence,lr_cooldown"]
    options += ["--set", "rules.quorum_confidence=.9", "--set", "rules.evidence_kinds=1"]
    assert invoke("review", "old run.csv", *options) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["agents"] == ["divergence", "lr_cooldown"] and report["rules"]["quorum_confidence"] == 0.9
    assert report["adopted"] == 0 and report["false_alarms"] == 1 and report["followed_by_harm"] == 1
    first = report["flags"][0]
    assert (first["agent"], first["step"], first["tick"], first["likely"]) == ("divergence", 305, 305, "harm")
    assert [change["verdict"] for change in first["changes"]] == ["rejected", "rejected"]
    assert "0.9 required" in first["changes"][0]["reason"] and first["confidence"] >= 0.65

    assert invoke("review", "old run.csv", "--agent", "all", "--no-assume", "--json") == 0
    bare = json.loads(capsys.readouterr().out)
    assert bare["assumed_knobs"] == [] and "no run.rollback" in bare["cannot_fire"]["divergence"]


def test_a_kept_run_can_be_reviewed_by_name_folder_or_log(tmp_path: Path, home: Home, capsys: Any) -> None:
    table(tmp_path / "a.csv", 700, spikes=((300, 200),))
    seen = {}
    assert invoke("import", "a.csv", "--run", "kept") == 0
    capsys.readouterr()
    for index, source in enumerate(("a.csv", "kept", "home/runs/kept", "home/runs/kept/log.jsonl")):
        assert invoke("review", source, "--agent", "all", "--json") == 0
        seen[index] = json.loads(capsys.readouterr().out)
    assert [flag["agent"] for flag in seen[0]["flags"]] == ["divergence"] and [
        folder.run for folder in home.runs()
    ] == ["kept"]
    assert seen[1] == seen[2] == seen[3] and seen[1]["flags"] == seen[0]["flags"]
    (tmp_path / "elsewhere.jsonl").write_bytes((home.path / "runs/kept/log.jsonl").read_bytes())
    assert invoke("review", "elsewhere.jsonl", "--agent", "all", "--json") == 0
    assert json.loads(capsys.readouterr().out)["flags"] == seen[0]["flags"]
    assert invoke("review", "kept", "--rename", "a=b") == 2
    assert "only with sources for `import`" in capsys.readouterr().err


def test_rows_of_nan_and_steps_that_go_back(tmp_path: Path, capsys: Any) -> None:
    rows = [(step, 2.0, 0.1) for step in range(1, 101)] + [(step, 2.0, 0.1) for step in range(60, 130)]
    rows += [(step, math.nan if step < 150 else math.inf, math.nan) for step in range(130, 160)]
    columns = [f"c{i}" for i in range(100)]
    lines = [",".join(["step", "loss", "learning_rate", *columns])]
    lines += [",".join(map(str, [*row, *[0.5] * 100])) for row in rows]
    (tmp_path / "x.csv").write_text("\n".join(lines) + "\n")
    assert invoke("review", "x.csv", "--agent", "all", "--html", "x.html") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "steps restart once" in out and "loss has not been finite since tick 171" in out
    assert "harm: loss was nan within" in out
    ElementTree.fromstring((tmp_path / "x.html").read_text().removeprefix("<!DOCTYPE html>"))
