"""A decision in one line: the change, both sides, and why; and the table of a run's agents."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.mesh_log import LR, Log
from tests.support.own_home import invoke
from tests.support.replayed import left_behind

from oven_core.protocol.messages import AgentStatus, TallyLine
from oven_core.terminal_text import shorten
from oven_runs.home.run_folder import Home
from oven_runs.log.decision_line import change_text, decision_line, main_reason, short_knob, sides_text, voices
from oven_runs.log.explanation import short_id


@given(st.text(alphabet="ab ,;", max_size=60), st.integers(2, 40))
def test_a_text_is_cut_after_a_word(text: str, columns: int) -> None:
    short = shorten(text, columns)
    assert len(short) <= columns
    if short != text:
        head = short.removesuffix("…")
        assert short.endswith("…") and text.startswith(head) and not head.endswith(" ")
        assert " " not in text[: columns - 1].strip() or not text[len(head) :][:1].isalpha()


def test_both_sides_are_named_proposers_first_and_votes_that_do_not_count_say_so() -> None:
    tally = (
        TallyLine(agent="amy", stance="for", weight=0.6),
        TallyLine(agent="bob", stance="propose", weight=0.6),
        TallyLine(agent="cat", stance="silent"),
        TallyLine(agent="dan", stance="against", newcomer=True),
        TallyLine(agent="eve", stance="against", shadow=True),
        TallyLine(agent="fay", stance="abstain"),
    )
    assert sides_text(voices(tally)) == "bob, amy for; dan (newcomer), eve (shadow) against"
    many = [TallyLine(agent=f"a{number}", stance="for", weight=1.0) for number in range(8)]
    assert sides_text(voices(many)) == "a0, a1, a2, a3, a4 and 3 more for; no one against"


def test_changes_name_what_changed() -> None:
    assert change_text(1.0, 4.0) == "1 → 4" and change_text(None, 60.0) == "→ 60" and change_text(None, None) == ""
    assert change_text({"a": 0.25, "b": 0.5, "c": 0.25}, {"a": 0.25, "b": 0.0, "c": 0.75}) == "b 0.5 → 0, c 0.25 → 0.75"
    assert [short_knob(name) for name in (LR, "run.rollback", "data.mixture")] == [
        "lr_scale", "rollback", "data.mixture"
    ]  # fmt: skip


def test_the_reason_of_a_rejection_is_its_cause_and_of_a_change_its_proposal() -> None:
    log = Log.running("amy", "bob")
    log.propose("amy", 0.5, rationale="the loss rose; twice")
    log.vote("bob", "for")
    assert main_reason(log.last) == "the loss rose; twice"
    log.receipt(log.last)
    log.tick(30)
    log.propose("amy", 2.0, rationale="it is flat")
    log.vote("bob", "against", confidence=0.9, rationale="one spike")
    assert main_reason(log.last).startswith("vetoed by bob at confidence 0.9")
    log.operator("c1", "set", actuator=LR, value=2.0, reason="a try")
    line = decision_line(log.last, 3, 0.5, 160)
    assert line.startswith("step 3: lr_scale 0.5 → 2 adopted: ") and "ann" in line


def test_a_line_names_fewer_agents_so_that_the_reason_and_the_command_that_shows_it_fit() -> None:
    names = [f"agent_with_a_name_{number}" for number in range(8)]
    log = Log.running(*names)
    log.propose(names[0], 0.5, rationale="the loss rose " * 20)
    for name in names[1:]:
        log.vote(name, "for")
    line = decision_line(log.last, 3, 1.0, 148)
    assert len(line) <= 148 and f"({names[0]}, {names[1]} and 6 more for; no one against): the loss rose the" in line
    assert line.endswith(f"… (explain {short_id(log.last.id).partition('-')[0]})")


def test_agent_list_with_a_run_says_what_each_agent_reads_and_moves_and_why_it_is_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OVEN_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "150")
    log = Log(stride=1)
    log.start()
    log.join("amy")
    log.tick()
    log.put("agent.idle", AgentStatus(state="joined", moves=("loss.sft",), needs=("loss/sft",)))
    log.status("idle", "cannot_fire", reason="the run announces none of loss.sft")
    log.join("hog")
    log.propose("amy", 0.5)
    log.status("hog", "failed", reason="out of memory")
    left_behind(Home(), log)
    assert invoke("agent", "list", "--run", "r", "--json") == 0
    rows = {row["agent"]: row for row in json.loads(capsys.readouterr().out)}
    assert {name: row["state"] for name, row in rows.items()} == {"amy": "active", "hog": "failed", "idle": "idle"}
    assert rows["idle"]["reason"] == "the run announces none of loss.sft" and list(rows)[-1] == "idle"
    assert invoke("agent", "list", "--run", "r") == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.split() == ["idle", "the", "run", "announces", "none", "of", "loss.sft"]
    assert invoke("agent", "list", "grad_clip", "--run", "r") == 2
    capsys.readouterr()
    assert invoke("status", "r") == 0
    status = capsys.readouterr().out
    assert "! agent hog failed: out of memory" in status
    assert "1 agent has nothing to do in this run: `oven-controller agent list --run r`" in status
