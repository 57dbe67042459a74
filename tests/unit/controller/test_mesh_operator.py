"""Operators' commands in the mesh: approve, veto, set, mute, autonomy; and what is advised."""

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.mesh_log import LR, MOVES, RUN, SPECS, Log

from oven_core.mesh.state_machine import Mesh
from oven_core.protocol.events import Event
from oven_core.protocol.messages import Decision, Receipt, Value
from oven_core.protocol.operator_messages import CommandAnswer, OperatorCommand
from oven_runs.log.replay import replay

MIX = "data.mixture"


def advised(**rules: Any) -> tuple[Log, Decision]:
    log = Log.running("amy", "bob", alone=(LR,), autonomy="advise", **rules)
    log.propose("amy", 0.5, confidence=0.9)
    log.vote("bob", "for")
    return log, log.last


def refused(log: Log) -> str:
    answer = log.answers[-1]
    assert not answer.done and not answer.decision
    return answer.reason


def test_advice_says_how_to_approve_it_and_starts_no_cool_down() -> None:
    log, advice = advised(approve_ticks=30)
    assert (advice.verdict, advice.value, advice.expires_at_tick) == ("advised", 0.5, 30)
    assert advice.reason.endswith(f"advised: approve with `oven-controller approve {advice.id}` within 30 ticks")
    assert not log.mesh.state.in_flight and log.mesh.state.interventions == 0
    log.propose("amy", 0.6, confidence=0.9)
    log.vote("bob", "for")
    assert (log.verdict, log.last.value) == ("advised", 0.6), "nothing was changed that would have to settle"


@pytest.mark.parametrize("by_id", [True, False])
def test_an_approval_applies_the_advice(by_id: bool) -> None:
    log, advice = advised()
    log.tick(2)
    log.operator("c1", "approve", of=advice.id if by_id else LR, reason="it is flat")
    made, answer = log.last, log.answers[-1]
    assert (made.verdict, made.value, made.approves, made.command, made.ballot) == ("adopted", 0.5, advice.id, "c1", "")
    assert (made.tick, made.apply_at_tick, made.expires_at_tick, made.tally) == (2, 3, 23, advice.tally)
    assert made.reason == f"approved by operator ann: it is flat; {advice.reason}"
    assert (answer.command, answer.operator, answer.action, answer.done) == ("c1", "ann", "approve", True)
    assert answer.decision == made.id and answer.tick == 2
    assert list(log.mesh.state.in_flight) == [made.id] and log.mesh.state.interventions == 1
    log.operator("c2", "approve", of=advice.id)
    assert f"was approved as decision {made.id}: there is nothing left to approve" in refused(log)


def test_advice_lapses_is_superseded_and_can_be_unknown() -> None:
    log, advice = advised(approve_ticks=10, cooldown_ticks=3)
    log.operator("c1", "approve", of="000000000007-00")
    assert f"no advised decision “000000000007-00”; advised decisions: {advice.id} on {LR}" in refused(log)
    log.tick(3)
    log.propose("amy", 0.4, confidence=0.9)
    log.vote("bob", "for")
    newer = log.last
    assert newer.verdict == "advised"
    log.operator("c2", "approve", of=advice.id)
    assert f"was replaced by decision {newer.id}: there is nothing left" in refused(log)
    log.tick(11)
    log.operator("c3", "approve", of=newer.id)
    assert "has lapsed: it was advised 11 ticks ago, and the limit is 10; use `oven-controller set`" in refused(log)
    assert len(log.decisions) == 2


def test_the_same_advice_is_not_given_twice_while_it_waits() -> None:
    log, advice = advised(cooldown_ticks=2, approve_ticks=10)
    for tick in (2, 10, 11):
        log.tick(tick - log.mesh.state.tick)
        log.propose("amy", 0.5, confidence=0.9)
        log.vote("bob", "for")
        if tick <= 10:
            assert f"already advised: decision {advice.id} is awaiting approval until tick 10" in log.last.reason
    assert [decision.verdict for decision in log.decisions] == ["advised", "rejected", "rejected", "advised"]
    log.operator("c1", "autonomy", autonomy="auto")
    log.tick(2)
    log.propose("amy", 0.5, confidence=0.9)
    log.vote("bob", "for")
    assert log.verdict == "adopted", "what may be done needs no advice"


def test_an_approval_passes_the_guardrails_again() -> None:
    log, advice = advised(contradictions=(("grad.clip", LR),), max_interventions=1)
    log.operator("set", "set", actuator="grad.clip", value=2.0)
    clip = log.last
    log.operator("c1", "approve", of=LR)
    assert f"contradiction: grad.clip is in flight (decision {clip.id})" in refused(log)
    log.receipt(clip)
    log.operator("c2", "approve", of=advice.id)
    assert log.answers[-1].done and log.last.approves == advice.id

    log, advice = advised()
    log.restart(autonomy="advise", specs=(SPECS[0].model_copy(update={"value": 0.5}),))
    log.operator("c1", "approve", of=advice.id)
    assert "no change" in refused(log)
    log.restart(autonomy="advise", specs=(SPECS[0].model_copy(update={"low": 0.6}),))
    log.operator("c2", "approve", of=advice.id)
    assert "is no longer valid: 0.5 for optimizer.lr_scale, outside its bounds 0.6 to 100" in refused(log)
    log.restart(autonomy="advise", specs=SPECS[1:])
    log.operator("c3", "approve", of=advice.id)
    assert "this run has no actuator “optimizer.lr_scale”; its actuators: data.mixture, grad.clip" in refused(log)
    log.restart(autonomy="advise", metrics=(), requires=((LR, "held_out"),))
    log.operator("c4", "approve", of=advice.id)
    assert "needs a held-out metric" in refused(log)
    log.restart(autonomy="advise", max_interventions=0)
    log.operator("c5", "approve", of=advice.id)
    assert "budget spent: 0 of 0" in refused(log)
    log.restart(autonomy="observe")
    log.operator("c6", "approve", of=advice.id)
    assert log.answers[-1].done, "what was advised is approved whatever autonomy says now"


def test_a_veto_closes_an_open_ballot_at_once() -> None:
    for target in ("id", LR):
        log = Log.running("amy", "bob")
        log.propose("amy", 0.5)
        ballot = log.ballots[-1].id
        log.operator("c1", "veto", by="kim", of=ballot if target == "id" else target, reason="the schedule ends soon")
        assert (log.verdict, log.last.ballot, log.last.reason) == (
            "rejected", ballot, "vetoed by operator kim: the schedule ends soon"
        )  # fmt: skip
        assert log.answers[-1].done and log.answers[-1].decision == log.last.id
        assert [line.stance for line in log.last.tally] == ["propose", "silent"] and not log.mesh.ballots


def test_a_veto_of_advice_and_of_an_adopted_decision() -> None:
    log, advice = advised()
    log.operator("c1", "veto", of=advice.id, reason="no")
    assert log.answers[-1].done and len(log.decisions) == 1
    log.operator("c2", "approve", of=advice.id)
    assert f"decision {advice.id} was vetoed by operator ann: no: there is nothing left to approve" in refused(log)
    log = Log.running("amy", alone=(LR,))
    log.propose("amy", 0.5, confidence=0.9)
    log.operator("c3", "veto", of=log.last.id)
    assert "was adopted at tick 0 (optimizer.lr_scale, 1 → 0.5): there is nothing left to veto" in refused(log)
    assert "use `oven-controller set` to change the value" in refused(log)
    log.operator("c4", "veto", of="teacher.active")
    assert "no open ballot or advised decision “teacher.active”; advised decisions: none" in refused(log)


def test_set_overrides_everything_but_the_bounds() -> None:
    log = Log.running(
        "amy", "bob", metrics=(), autonomy="observe", max_interventions=0, max_factor=2, cooldown_ticks=9,
        requires=((LR, "held_out"),), contradictions=((LR, "grad.clip"),),
    )  # fmt: skip
    log.operator("c0", "set", actuator="grad.clip", value=9)
    assert (log.last.snapshot_first, log.last.reason) == (True, "operator ann set grad.clip to 9, now 1")
    clip = log.last
    log.operator("c1", "set", actuator=LR, value=64.0, reason="as in the paper")
    made = log.last
    assert (made.verdict, made.value, made.before, made.command, made.ballot) == ("adopted", 64.0, 1.0, "c1", "")
    assert (made.tally, made.apply_at_tick, made.expires_at_tick) == ((), 1, 21)
    need = f"unmet: {LR} needs a held-out metric (held_out), but the learner announces none"
    conflict = f"contradiction: grad.clip is in flight (decision {clip.id}), {LR} must wait"
    assert made.reason == (
        f"operator ann set {LR} to 64, now 1 (overrides {need}; {conflict}): as in the paper"
    )  # fmt: skip
    assert log.answers[-1].reason == f"set {LR} to 64, although {need}; {conflict}"
    log.operator("c2", "set", actuator=LR, value=0.01)
    assert log.last.value == 0.01 and log.mesh.state.interventions == 0, "an operator has no budget"
    for value, words in ((1000.0, "outside its bounds 0.01 to 100"), ("x", "but a finite number is required")):
        log.operator(f"bad {value}", "set", actuator=LR, value=value)
        assert words in refused(log) and "cannot be set for optimizer.lr_scale" in refused(log)
    log.operator("c3", "set", actuator="optimizer.lr", value=1.0)
    assert "no actuator “optimizer.lr”; its actuators: data.mixture, grad.clip, optimizer.lr_scale" in refused(log)
    assert len(log.decisions) == 3


@pytest.mark.parametrize(
    ("actuator", "value", "made"),
    [
        ("teacher.active", "big", "big"),
        (MIX, {"math": 0.5, "web": 0.25, "code": 0.25}, {"web": 0.25, "code": 0.25, "math": 0.5}),
        ("run.rollback", 4.0, 4.0),
        ("run.rollback", None, None),
        ("run.hold", None, None),
    ],
)
def test_every_kind_of_actuator_can_be_set(actuator: str, value: Value, made: Value) -> None:
    log = Log.running()
    log.operator("c1", "set", actuator=actuator, value=value)
    assert (log.verdict, log.last.actuator, log.last.value) == ("adopted", actuator, made)


def test_set_starts_the_cool_down_and_closes_the_open_ballot() -> None:
    log = Log.running("amy", "bob", cooldown_ticks=4)
    log.propose("amy", 0.5)
    log.operator("c1", "set", by="kim", actuator=LR, value=2.0)
    closed, made = log.decisions
    assert (closed.verdict, closed.ballot, closed.reason) == ("rejected", log.ballots[0].id, "operator kim set it")
    assert made.verdict == "adopted" and log.answers[-1].decision == made.id
    log.receipt(made)
    log.tick(3)
    log.propose("amy", 1.0)
    log.vote("bob", "for")
    assert "cooling down: 3 ticks since the last change of optimizer.lr_scale" in log.last.reason
    log.tick()
    log.propose("amy", 1.0)
    log.vote("bob", "for")
    assert log.verdict == "adopted"


def test_autonomy_changes_at_once_and_survives_a_restart_of_the_learner() -> None:
    log = Log.running("amy", "bob", cooldown_ticks=0, autonomy_of={"grad.clip": "observe"})

    def verdict(actuator: str, value: Value) -> str:
        log.propose("amy", value, actuator)
        log.vote("bob", "for", actuator=actuator)
        return log.verdict

    log.operator("c1", "autonomy", actuator=LR, autonomy="advise")
    assert log.answers[-1].reason == f"autonomy for {LR} is now advise"
    assert (verdict(LR, 2.0), verdict("teacher.active", "big")) == ("advised", "adopted")
    log.restart(cooldown_ticks=0, autonomy_of={"grad.clip": "observe"})
    assert (verdict(LR, 2.1), verdict("grad.clip", 2.0)) == ("advised", "rejected")
    log.operator("c2", "autonomy", autonomy="advise")
    assert {verdict(LR, 2.2), verdict("grad.clip", 2.0), verdict("teacher.active", "small")} == {"advised"}
    log.operator("c3", "autonomy", actuator="grad.clip", autonomy="auto")
    assert (verdict(LR, 2.3), verdict("grad.clip", 2.0)) == ("advised", "adopted")
    log.operator("all", "autonomy", autonomy="observe")
    assert {verdict(LR, 2.0), verdict("grad.clip", 4.0)} == {"rejected"}, "all means what was named before, too"
    log.operator("c4", "autonomy", actuator="grad.clap", autonomy="auto")
    assert "no actuator “grad.clap”" in refused(log)
    log.operator("c5", "autonomy")
    assert "needs a level: observe, advise or auto" in refused(log)


def test_commands_outside_a_run_are_answered_and_do_nothing() -> None:
    log = Log()
    log.operator("c1", "set", actuator=LR, value=2.0)
    assert refused(log) == "the run has not started; set only works while it is running"
    log.start()
    log.end()
    log.operator("c2", "mute", agent="amy")
    assert "the run has ended" in refused(log)
    assert not log.decisions


def test_the_mesh_leaves_hold_resume_and_stop_to_the_learner() -> None:
    log = Log.running("amy")
    for number, action in enumerate(("hold", "resume", "stop")):
        assert log.operator(f"c{number}", action) == []
    assert len(log.mesh.state.commands) == 3
    log.obeyed("c0")
    assert log.mesh.state.counters["receipt.not_in_flight"] == 0


def test_a_repeated_id_is_answered_once_whoever_repeats_it() -> None:
    log = Log.running("amy")
    log.operator("c1", "set", actuator=LR, value=2.0)
    log.operator("c1", "set", actuator=LR, value=2.0)
    log.operator("c1", "mute", by="eve", agent="amy")
    assert len(log.answers) == len(log.decisions) == 1 and not log.mesh.state.muted
    assert log.mesh.state.counters["operator.repeated"] == 2


def test_a_log_with_commands_replays_equal_also_from_its_export() -> None:
    log, advice = advised()
    log.operator("c1", "mute", agent="bob")
    log.operator("c2", "approve", of=advice.id, reason="yes “quite” 猫")
    log.receipt(log.last)
    log.operator("c3", "hold")
    log.obeyed("c3")
    log.operator("c4", "set", actuator=MIX, value={"web": 0.2, "code": 0.2, "math": 0.6})
    log.operator("c5", "autonomy", autonomy="observe")
    log.propose("amy", 0.4)
    log.operator("c6", "veto", of=LR)
    log.operator("c7", "unmute", agent="bob")
    log.end()
    for events in (log.events, [Event.from_line(entry.line()) for entry in log.events]):
        report = replay(events, RUN)
        assert report.same and report.finished and report.equal == len(log.outputs)
        assert report.by_kind["answer"] == 6


names = st.sampled_from(["amy", "bob", "cat", "dan", LR, MIX, "grad.clip", "run.rollback", "nobody", "", "猫\x00"])
values = (
    st.none()
    | st.floats()
    | st.floats(0.01, 10)
    | names
    | st.dictionaries(st.sampled_from(["web", "code", "math", "x"]), st.floats(0, 1), max_size=4)
    | st.just({"web": 0.2, "code": 0.2, "math": 0.6})
)
mixtures = (
    st.tuples(*[st.integers(0, 10)] * 3)
    .filter(any)
    .map(lambda parts: {name: part / sum(parts) for name, part in zip(("web", "code", "math"), parts, strict=True)})
)
fitting = st.one_of(
    st.tuples(st.just(LR), st.floats(0.01, 100)),
    st.tuples(st.just("grad.clip"), st.floats(0, 10)),
    st.tuples(st.just("teacher.active"), st.sampled_from(["none", "small", "big"])),
    st.tuples(st.just(MIX), mixtures),
    st.tuples(st.just("run.rollback"), st.none() | st.floats(0, 100)),
)
commands = st.fixed_dictionaries(
    {"action": st.sampled_from(["approve", "veto", "set", "mute", "unmute", "autonomy", "hold"])},
    optional={
        "of": names | st.integers(1, 30).map(lambda n: f"{n * 10:012d}-00"),
        "actuator": st.sampled_from(MOVES) | names,
        "value": values,
        "agent": names,
        "autonomy": st.sampled_from(["observe", "advise", "advise", "auto"]),
        "reason": st.text(max_size=30),
    },
)
moves = st.one_of(
    st.tuples(st.just("command"), st.integers(0, 12), commands),
    st.tuples(st.just("newest"), st.sampled_from(["approve", "approve", "veto"]), st.booleans()),
    st.tuples(st.just("approved"), fitting, st.integers(0, 8)),
    st.tuples(st.just("set"), fitting),
    st.tuples(st.just("agreed"), fitting),
    st.tuples(st.just("agreed"), fitting),
    st.tuples(st.just("opened"), fitting),
    st.tuples(st.just("propose"), st.sampled_from(["amy", "bob", "cat"]), values, st.sampled_from(MOVES)),
    st.tuples(st.just("for"), st.sampled_from(["bob", "cat", "dan"]), st.sampled_from(MOVES)),
    st.tuples(st.just("tick"), st.integers(1, 4)),
    st.tuples(st.just("receipt")),
    st.tuples(st.just("rare"), st.sampled_from(["restart", "restart", "restart", "end"])),
)
relaxed = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def written(steps: list[tuple[Any, ...]]) -> Log:
    log = Log.running("amy", "bob", "cat", autonomy="advise", evidence_kinds=1, shadow=("cat",), approve_ticks=6)
    log.join("dan", shadow=True)
    for number, step in enumerate(steps):
        commanded(log, number, step)
        happened(log, step)
    return log


def commanded(log: Log, number: int, step: tuple[Any, ...]) -> None:
    """What an operator says, and the votes that it needs."""
    match step:
        case ("command", same, fields):
            log.operator(f"c{same}", **fields)
        case ("newest", action, by_id) if log.decisions:
            log.operator(f"n{number}", action, of=log.last.id if by_id else log.last.actuator)
        case ("set", (actuator, value)):
            log.operator(f"n{number}", "set", actuator=actuator, value=value)
        case ("approved", (actuator, value), wait):
            for name in ("amy", "bob"):
                log.propose(name, value, actuator, 0.9)
            log.tick(wait)
            log.operator(f"n{number}", "approve", of=actuator)
        case ("opened", (actuator, value)):
            log.propose("amy", value, actuator, 0.9)
            log.operator(f"n{number}", "veto" if number % 2 else "set", of=actuator, actuator=actuator, value=value)


def happened(log: Log, step: tuple[Any, ...]) -> None:
    """What agents and the learner do."""
    match step:
        case ("agreed", (actuator, value)):
            for name in ("amy", "cat", "bob"):
                log.propose(name, value, actuator, 0.9)
        case ("propose", agent, value, actuator):
            log.propose(agent, value, actuator, 0.9)
        case ("for", agent, actuator):
            log.vote(agent, "for", actuator=actuator)
        case ("tick", count):
            log.tick(count)
        case ("receipt",):
            for flight in list(log.mesh.state.in_flight.values())[:1]:
                log.receipt(flight.decision)
        case ("rare", "restart"):
            log.restart(autonomy="advise", evidence_kinds=1, shadow=("cat",), approve_ticks=6)
        case ("rare", "end"):
            log.end()


@relaxed
@given(st.lists(moves, min_size=5, max_size=40))
def test_the_contract_holds_for_any_commands(steps: list[tuple[Any, ...]]) -> None:
    log = written(steps)
    mesh = Mesh(RUN)
    emitted = [output.message.wire() for entry in log.events for output in mesh.step(entry)]
    assert emitted == [output.message.wire() for output in log.outputs] and mesh.divergence is None
    assert replay(log.events, RUN).same

    commands: dict[str, OperatorCommand] = {}
    for entry in log.events:
        if isinstance(entry.body, OperatorCommand):
            commands.setdefault(entry.body.id, entry.body)
    answered = Counter(answer.command for answer in log.answers)
    assert answered == Counter(command.id for command in commands.values() if command.action != "hold")

    advice = {decision.id: decision for decision in log.decisions if decision.verdict == "advised"}
    by_id = {decision.id: decision for decision in log.decisions}
    approved: set[str] = set()
    for answer in log.answers:
        if answer.decision:
            made, command = by_id[answer.decision], commands[answer.command]
            assert answer.done
            assert (made.verdict, made.command) == (
                ("rejected", "") if command.action == "veto" else ("adopted", command.id)
            )
        else:
            assert not answer.done or answer.action in ("mute", "unmute", "autonomy", "veto")
    for decision in log.decisions:
        fits(decision)
        assert all(line.weight == 0 for line in decision.tally if line.shadow)
        if decision.approves:
            assert decision.approves in advice and decision.approves not in approved
            assert decision.tick <= advice[decision.approves].expires_at_tick
            approved.add(decision.approves)
        elif decision.verdict == "adopted" and not decision.command:
            assert any(line.stance == "propose" and not line.shadow for line in decision.tally)
    assert not any(ballot.opened_by in ("cat", "dan") for ballot in log.ballots)


def fits(decision: Decision) -> None:
    """What is adopted lies within its bounds, whoever wanted it."""
    if decision.verdict != "adopted":
        return
    spec = next(spec for spec in SPECS if spec.name == decision.actuator)
    if spec.kind == "scalar":
        assert isinstance(decision.value, float) and spec.low is not None and spec.high is not None
        assert spec.low <= decision.value <= spec.high
    elif spec.kind == "choice":
        assert decision.value in spec.choices
    elif spec.kind == "simplex":
        assert isinstance(decision.value, dict) and abs(sum(decision.value.values()) - 1) < 1e-6


odd: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=70) | st.just([]) | st.just({"a": {}})
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(commands, st.sampled_from(["id", "of", "value", "agent", "autonomy", "v"]), odd), max_size=12)
)
def test_no_command_makes_it_raise(damaged: Any) -> None:
    log, _ = advised()
    for number, (fields, name, value) in enumerate(damaged):
        body = {"type": "OperatorCommand", "id": str(number), **fields, name: value}
        log.put("operator.ann", json.dumps(body).encode())
    log.tick(4)
    assert log.mesh.divergence is None
    assert {type(output.message) for output in log.outputs} >= ({CommandAnswer} if log.answers else set())
    assert not any(isinstance(entry.body, Receipt) for entry in log.events)
