"""The agents' part of the monitor: those that have spoken have a row each, however many there are."""

from __future__ import annotations

import pytest
from tests.support.mesh_log import LR, RUN, Log, event

from oven_core.protocol.alerts import Alert
from oven_tui.model.monitor_view import MonitorView
from oven_tui.widgets.agent_panel import AgentPanel

QUIET = tuple(f"quiet-{number:02d}" for number in range(11))


def shown(width: int, height: int, *agents: str) -> list[str]:
    log = Log.running(*agents, "zoe")
    log.propose("zoe", 2.0, LR)
    view = MonitorView()
    for entry in log.events:
        view.feed(entry)
    return ["".join(text for text, _ in row) for row in AgentPanel(view).rows(width, height)]


def test_agents_that_voted_are_listed_first_and_the_others_share_rows() -> None:
    _, spoke, *shared = shown(110, 12, *QUIET)
    assert spoke.split()[1] == "zoe" and f"propose {LR} 2" in spoke
    assert len(shared) == 3 and all(name in " ".join(shared) for name in QUIET)


@pytest.mark.parametrize("height", [2, 3])
def test_on_a_small_screen_agents_that_voted_come_first_and_the_rest_is_counted(height: int) -> None:
    rows = shown(80, height, *QUIET)
    assert len(rows) == height and "zoe" in rows[0]
    assert rows[-1].startswith(f"{12 - 3 * (height - 1)} more")


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
