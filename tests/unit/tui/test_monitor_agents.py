"""The participants' part of the monitor: who acted has a row, the others share rows, the idle ones are counted."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from rich.cells import cell_len
from tests.support.mesh_log import LR, RUN, Log, event

from oven_core.protocol.alerts import Alert
from oven_core.protocol.messages import ActuatorSpec
from oven_tui.model.monitor_view import MonitorView
from oven_tui.model.participants import GRAPH
from oven_tui.widgets.agent_panel import AgentPanel

QUIET = tuple(f"quiet-{number:02d}" for number in range(11))


def fold(log: Log) -> MonitorView:
    view = MonitorView()
    for entry in log.events:
        view.feed(entry)
    return view


def text_rows(view: MonitorView, width: int, height: int) -> list[str]:
    rows = ["".join(text for text, _ in row) for row in AgentPanel(view).rows(width, height)]
    assert len(rows) <= height and {cell_len(row) for row in rows} == {width}
    return rows


def shown(width: int, height: int, *agents: str) -> list[str]:
    log = Log.running(*agents, "zoe")
    log.propose("zoe", 2.0, LR)
    return text_rows(fold(log), width, height)


def test_agents_that_voted_are_listed_first_and_the_others_share_rows() -> None:
    _, voter, *shared = shown(110, 12, *QUIET)
    assert voter.split()[1] == "zoe" and "propose lr_scale 2" in voter
    assert len(shared) == 3 and all(name in " ".join(shared) for name in QUIET)


@pytest.mark.parametrize("height", [1, 2, 3])
def test_on_a_small_screen_agents_that_voted_come_first_and_the_rest_is_counted(height: int) -> None:
    rows = shown(80, height, *QUIET)
    assert len(rows) == height and "zoe" in "".join(rows[:2])
    visible = sum(name in " ".join(rows) for name in QUIET)
    assert rows[-1].rstrip().endswith(f"{len(QUIET) - visible} more")


def test_agents_with_nothing_to_do_are_one_number_in_the_title() -> None:
    log = Log.running("amy", *QUIET)
    for name in QUIET:
        log.status(name, "cannot_fire", reason="there is no actuator loss.sft")
    panel = AgentPanel(fold(log))
    assert not any("quiet" in row for row in text_rows(panel.view, 110, 12))
    command = f"oven-controller agent list --run {RUN}"
    assert panel.title(110) == f"participants; 11 have nothing to do in this run: {command}"
    assert panel.title(60) == f"participants; 11 idle: {command}"
    log.join(QUIET[0])
    assert fold(log).run.idle_agents() == list(QUIET[1:])


def test_an_agent_that_sees_a_symptom_has_a_row_that_says_so() -> None:
    log = Log.running(*QUIET, "zoe")
    alert = Alert(state="raised", symptom="kl_runaway", metric="kl", value=3.0, expected=0.6, tick=1)
    view = MonitorView()
    for entry in [*log.events, event(log.events[-1].seq + 1, f"oven.{RUN}.alert.zoe", alert)]:
        view.feed(entry)
    rows = AgentPanel(view).rows(110, 12)
    row = next(row for row in rows if any("zoe" in text for text, _ in row))
    assert ("! kl_runaway ", "bad") in row and any(text.startswith("alert") for text, _ in row)
    assert "kl_runaway: kl 3 is above 0.6" in str(view.entries[-1])
    before = view.frozen_copy()
    cleared = alert.model_copy(update={"state": "cleared", "value": 0.2})
    view.feed(event(log.events[-1].seq + 2, f"oven.{RUN}.alert.zoe", cleared))
    assert not view.run.alerts.by_agent and before.run.alerts.by_agent, "a copy stays as it is"


def test_the_graph_has_a_row_with_its_requests_latency_and_path() -> None:
    log = Log.running("amy", GRAPH, *QUIET)
    log.propose("amy", 2.0, evidence=("kg:3f5a", "for: slow ← CAUSES ← lr_too_low ← SOLVES ← raise_lr [C1; D; own]"))
    log.vote(GRAPH, "for", ballot=log.ballots[-1].id)
    *earlier, reply = log.events
    later = replace(reply, time=reply.time + timedelta(milliseconds=42))
    view = MonitorView()
    for entry in [*earlier, later]:
        view.feed(entry)
    assert (view.participants.replies[GRAPH].count, view.participants.graph_requests) == (1, 2)
    rows = text_rows(view, 110, 14)
    assert f" {GRAPH} " in rows[1] and "42 ms" in rows[1], "it is the first agent"
    assert any("graph cites" in row and "slow ← lr_too_low ← raise_lr; 2 requests" in row for row in rows)
    assert "graph" in text_rows(view, 80, 1)[0] and "42 ms" in text_rows(view, 80, 1)[0]


def test_a_graph_that_only_advises_agents_has_a_row_too() -> None:
    log = Log.running("amy")
    log.propose("amy", 2.0, evidence=("kg:3f5a",))
    assert any(row.startswith(f"  {GRAPH} ") and "1 request" in row for row in text_rows(fold(log), 80, 5))


def test_the_committee_is_a_row_with_scores_weights_and_problems() -> None:
    log = Log()
    weights = {"exact": 0.7, "format": 0.0, "critic": 0.3}
    specs = (
        ActuatorSpec(name="reward.weights", kind="simplex", choices=tuple(weights), value=weights, low=0, high=1),
        ActuatorSpec(name="committee.critic", kind="choice", choices=("off", "openai/m"), value="openai/m"),
    )
    log.start(specs)
    log.join("amy")
    scores = {"committee/skipped_groups": 0.0, "rewards/exact/mean": 0.25, "rewards/format/mean": 0.9}
    log.tick(1, **scores, **{"rewards/critic/abstain/quarantined": 4.0})
    row = next(row for row in text_rows(fold(log), 110, 6) if row.startswith("  committee"))
    assert row.split("committee")[1].split() == [
        "critic", "quarantined", "×0.3", "exact", "0.25", "×0.7", "format", "0.90", "×0"
    ]  # fmt: skip
    narrow = next(row for row in text_rows(fold(log), 50, 6) if row.startswith("  committee"))
    assert "critic quarantined" in narrow and narrow.rstrip().endswith("+2"), "a problem is never cut off"
