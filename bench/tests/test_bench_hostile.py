"""What `bench hostile` makes of logs: facts from made-up events, figures and noise from made-up rows, and its cases."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click import BadParameter

from oven_bench.hostile.attack_effects import noise, report
from oven_bench.hostile.attacks import ATTACKS, USUAL, folder, named
from oven_bench.hostile.command import STUDY, cases
from oven_bench.hostile.run_facts import LATER, Case, Log, Row, read
from oven_bench.study import Report
from oven_core.errors import ConfigError, UnknownNameError
from oven_core.protocol.actuators import ACTUATORS
from oven_core.protocol.events import UNKNOWN_TIME, Event
from oven_core.protocol.messages import (
    AgentStatus,
    Decision,
    Message,
    Observation,
    Outcome,
    OutcomeLine,
    RunEnded,
    RunStarted,
    TallyLine,
    Value,
)
from oven_core.protocol.names import Subjects

ON = Subjects("r")
GUESTS = ("evil", "twin")


def log(*messages: tuple[str, Message]) -> Log:
    events = [
        Event.read(seq, subject, message.wire(), UNKNOWN_TIME) for seq, (subject, message) in enumerate(messages, 1)
    ]
    return read(events, GUESTS, "lr")


def joined(name: str) -> tuple[str, Message]:
    return ON.agent(name), AgentStatus(state="joined")


def seen(tick: int) -> tuple[str, Message]:
    return ON.observation, Observation(incarnation=1, n=tick, tick=tick, step=tick, progress=0, metrics={})


def ended(**changes: Any) -> tuple[str, Message]:
    message = RunEnded(incarnation=1, n=999, reason="completed", tick=9, step=9, metrics={"eval/accuracy": 0.9})
    return ON.run, message.model_copy(update=changes)


def proposed(agent: str, value: Value, reputation: float = 1.0, confidence: float = 0.9) -> TallyLine:
    weight = reputation * confidence
    return TallyLine(agent=agent, stance="propose", value=value, reputation=reputation, weight=weight)


def decided(tick: int, *tally: TallyLine, **changes: Any) -> tuple[str, Message]:
    made: dict[str, Any] = {
        "actuator": "optimizer.lr_scale",
        "value": 10.0,
        "before": 1.0,
        "reason": "",
        "apply_at_tick": tick + 1,
    }
    made |= {"id": f"{tick:012d}-00", "ballot": "b", "verdict": "adopted", "tick": tick, "expires_at_tick": tick + 20}
    return ON.decision("x"), Decision.model_validate(made | {"tally": tally} | changes)


def judged(tick: int, gain: float | None, *voters: str, merit: float = -0.5, stance: str = "propose") -> Any:
    lines = [
        OutcomeLine.model_validate({"agent": name, "stance": stance, "confidence": 0.9, "success": 0, "merit": merit,
                                    "before": 1, "after": 0.9})
        for name in voters
    ]  # fmt: skip
    return ON.outcome("x"), Outcome(decision_id="d", actuator="optimizer.lr_scale", target="reward", scored=True,
                                    reason="", from_tick=1, tick=tick, gain=gain, lines=tuple(lines))  # fmt: skip


def test_a_run_that_did_not_complete_has_no_accuracy() -> None:
    assert log(ended()).accuracy == 0.9
    assert log(ended(reason="stopped")).accuracy is None
    assert log(ended(metrics={"eval/accuracy": math.nan})).accuracy is None
    assert log(ended(metrics={})).accuracy is None
    assert log(seen(1)).accuracy is None


def test_a_remedy_is_what_a_shipped_agent_proposed_and_the_mesh_adopted() -> None:
    down = {"value": 0.125}
    both = (proposed("lr", 0.125), proposed("evil", 10.0))
    run = RunStarted(incarnation=1, n=0, recipe="r", actuators=(ACTUATORS["run.evaluate"],))
    result = log(
        (ON.run, run),
        decided(1, proposed("lr", 0.5), verdict="rejected", **down),
        decided(2, proposed("lr", None), actuator="run.evaluate", value=None, before=None),
        decided(3, *both),  # the guest's side won
        decided(4, proposed("lr", 0.125, reputation=0.0), **down),  # without weight nobody has decided anything
        decided(5, *both, **down),
        decided(6, proposed("lr", 0.125), **down),
    )
    assert result.remedy_tick == 5
    assert (result.own, result.own_tick) == (1, 3)


def test_what_a_person_approved_is_no_decision_of_the_guests_own() -> None:
    result = log(decided(3, proposed("evil", 10.0), command="c1", of="d0"), decided(6, proposed("evil", 10.0)))
    assert (result.own, result.own_tick) == (1, 6)


@pytest.mark.parametrize(
    "harmless",
    [
        judged(3, 0.1, "evil"),  # it got better, though less than was promised
        judged(3, -0.1, "lr"),
        judged(3, -0.1, "evil", merit=0.1),
        judged(3, -0.1, "evil", stance="against"),
        judged(3, None, "evil", merit=0.5),  # a target that is finite again
    ],
)
def test_what_is_no_harm_of_a_guests(harmless: Any) -> None:
    result = log(harmless, decided(4, proposed("evil", 10.0)))
    assert (result.harm_tick, result.reputation, result.honest_reputation) == (None, None, None)


def test_the_weight_is_looked_at_twenty_decisions_after_the_first_harm() -> None:
    def lines(offset: int) -> list[TallyLine]:
        return [
            proposed("evil", 10.0, 1 - offset / 100),
            proposed("twin", 10.0, 0.1),
            proposed("lr", 2.0, 1 + offset / 100),
        ]

    after = [decided(10 + offset, *lines(offset)) for offset in range(1, LATER + 5)]
    result = log(decided(1, *lines(0)), judged(2, -0.1, "evil"), *after, judged(90, -0.1, "evil"))
    assert (result.harm_tick, result.decided_since) == (2, 20)
    assert result.reputation == pytest.approx(0.8) and result.honest_reputation == pytest.approx(1.2)
    sooner = log(judged(2, None, "evil"), *after[:3], decided(99, proposed("decay", 1.0)))
    assert sooner.decided_since == 4 and sooner.reputation == pytest.approx(0.97), "the last that there is"


def test_outcomes_before_the_first_decision_of_ones_own_are_counted() -> None:
    unscored = judged(3, None, "evil")
    unscored = (unscored[0], unscored[1].model_copy(update={"scored": False}))
    result = log(
        judged(1, 0.1, "evil", merit=0.2), judged(2, 0.1, "lr"), unscored, judged(4, 0.1, "evil", stance="for"),
        decided(5, proposed("evil", 10.0)), judged(6, 0.1, "evil"),
    )  # fmt: skip
    assert (result.scored, result.own_tick, result.earned) == (2, 5, 0.9)


def row(attack: str, start: str, seed: int, accuracy: float | None, **changes: Any) -> Row:
    made = Log(events=500, accuracy=accuracy, remedy_tick=8 if start == "drill" else None)
    of_log = {key: changes.pop(key) for key in list(changes) if hasattr(made, key)}
    return replace(Row(Case(attack, start, seed, 200), replace(made, **of_log), 400_000, 0.0, 0, 0, 60.0), **changes)


WITHOUT = [row("", "tuned", 1, 0.95), row("", "tuned", 2, 0.96), row("", "drill", 1, 0.96), row("", "drill", 2, 0.95)]


def entries(result: Report, kind: str = "attacks") -> list[dict[str, Any]]:
    rows = result.figures[kind]
    assert isinstance(rows, list)
    return rows


def test_each_attack_stands_beside_the_run_without_of_its_start_and_seed() -> None:
    attacked = [
        row("silencer", "drill", 2, None, remedy_tick=None, events=20_000, exit=None),
        row("pair", "drill", 1, 0.0, remedy_tick=17, reputation=0.70151, honest_reputation=1.1),
        row("pair", "tuned", 1, 0.0, remedy_tick=3, processes_left=2, exit=1),
    ]
    busy = replace(WITHOUT[0], log=replace(WITHOUT[0].log, remedy_tick=60))
    result = report([*attacked, busy, *WITHOUT[1:]], 1536)
    tuned, drill, silencer = entries(result)
    assert [attack["name"] for attack in entries(result)] == ["pair", "pair", "silencer"]
    assert (tuned["start"], tuned["without"], tuned["within_noise"], tuned["log_ratio"]) == ("tuned", 0.95, False, 1.0)
    assert tuned["remedy_windows"] is None, "nothing was to be remedied"
    assert (tuned["processes_left"], tuned["exit"]) == (2, 1)
    assert (drill["without"], drill["remedy_windows"], drill["reputation"]) == (0.96, 3.0, 0.702)
    assert drill["honest_reputation"] == 1.1
    assert silencer["accuracy"] is None and silencer["exit"] is None, "what failed has no figure"
    assert silencer["remedy_windows"] is silencer["remedy_tick"] is None and not silencer["within_noise"]
    assert silencer["log_ratio"] == 40.0
    assert entries(result, "newcomer") == []
    json.dumps(result.figures, allow_nan=False)


def test_the_newcomer_is_counted_apart() -> None:
    rows = [
        row("newcomer", "drill", 1, 0.5, scored=4, own_tick=None),
        row("newcomer_granted", "drill", 1, 0.96, own_tick=8),
    ]
    result = report([*WITHOUT, *rows], 1536)
    assert entries(result) == []
    alone, granted = entries(result, "newcomer")
    assert (alone["granted"], alone["scored_outcomes"], alone["first_decision_tick"]) == (False, 4, None)
    assert (granted["granted"], granted["scored_outcomes"], granted["first_decision_tick"]) == (True, 0, 8)
    assert granted["remedy_tick_without"] == 8 and granted["without"] == 0.96


def test_the_noise_by_hand() -> None:
    assert noise([0.95], 1536) == pytest.approx(math.sqrt(2) * 1.96 * math.sqrt(0.95 * 0.05 / 1536), rel=1e-4)
    assert noise([0.90, 1.0], 10_000) == pytest.approx(math.sqrt(2) * 12.706 * 0.0707107, rel=1e-4)
    assert noise([1.0], 10) == 0.0


def test_the_runs_without_are_run_once_and_first() -> None:
    result = cases(named(["pair", "newcomer"]), ["tuned", "drill"], [1, 2], 200, 3)
    without = [case for case in result if not case.attack]
    assert result[: len(without)] == without and len(set(result)) == len(result)
    assert [(case.start, case.seed) for case in without] == [(s, n) for s in ("tuned", "drill") for n in (1, 2, 3)]
    attacked = [(case.attack, case.start, case.seed) for case in result[len(without) :]]
    assert attacked == [
        ("pair", "tuned", 1), ("pair", "tuned", 2), ("pair", "drill", 1), ("pair", "drill", 2),
        ("newcomer", "drill", 1), ("newcomer", "drill", 2),
    ]  # fmt: skip
    assert len([case for case in cases([], ["tuned"], [1, 2, 3], 200, 2) if not case.attack]) == 3


def test_what_is_asked_for_wrongly_is_told_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="no attack named 'silence'; did you mean 'silencer'"):
        STUDY.run(["--attacks", "silence"])
    with pytest.raises(ConfigError, match="newcomer is only defined for drill and drill-low; add that to --starts"):
        STUDY.run(["--attacks", "newcomer", "--starts", "tuned"])
    with pytest.raises(ConfigError, match="--seeds x: 'x'"):
        STUDY.run(["--seeds", "x"])
    with pytest.raises(BadParameter, match="0 is not in the range x>=1"):
        STUDY.run(["--jobs", "0"])
    (tmp_path / "rows").write_text("{}\n")
    with pytest.raises(ConfigError, match="by another bench; name another file"):
        STUDY.run(["--attacks", "pair", "--results", str(tmp_path / "rows")])


def test_every_attack_has_its_files_and_names_of_its_own() -> None:
    for attack in ATTACKS.values():
        assert attack.guests and len(attack.names) == len(attack.guests)
        for guest in attack.guests:
            assert guest.path.is_file()
            assert guest.how != "stack" or guest.name == guest.file, "the stack names an agent by its file"
    used = {guest.file for attack in ATTACKS.values() for guest in attack.guests}
    assert {path.stem for path in folder().glob("*.py")} == used | {"__init__"}
    assert set(USUAL) == set(ATTACKS) - {"newcomer_granted"}
