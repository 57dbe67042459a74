"""What holds of outcomes for every log: replicas agree, windows never overlap, a failure never becomes a number."""

import math
from collections import Counter
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.mesh_log import LR, MOVES, RUN, Log

from oven_core.mesh.state_machine import Mesh
from oven_core.protocol.events import Event
from oven_core.protocol.messages import Outcome, RunStarted
from oven_runs.log.replay import replay

relaxed = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
AGENTS = ("amy", "bob", "cat")
MEASURED = st.one_of(st.floats(0, 2), st.floats(), st.sampled_from([1.0, 1.0, 1e308, -1e308]))
VALUES: dict[str, Any] = {
    LR: st.floats(0.01, 100),
    "grad.clip": st.floats(0, 10),
    "teacher.active": st.sampled_from(["none", "small", "big"]),
    "data.mixture": st.sampled_from([{"web": 0.2, "code": 0.3, "math": 0.5}, {"web": 0.6, "code": 0.2, "math": 0.2}]),
    "run.rollback": st.one_of(st.none(), st.integers(0, 60).map(float)),
    "run.hold": st.none(),
    "run.evaluate": st.none(),
}
change = st.sampled_from(MOVES).flatmap(
    lambda actuator: st.tuples(
        st.just("change"),
        st.just(actuator),
        VALUES[actuator],
        st.sampled_from(["loss", "eval/loss", "", "gauge"]),
        st.floats(),
        st.sampled_from([0, 2, 6, 10**12]),
        st.sampled_from(["for", "against", "propose"]),
        st.sampled_from(["applied", "applied", "applied", "noop", "none"]),
    )
)
moves = st.one_of(
    change,
    change,
    st.tuples(st.just("ticks"), st.lists(MEASURED, min_size=1, max_size=8)),
    st.tuples(st.just("ticks"), st.lists(MEASURED, min_size=1, max_size=8)),
    st.tuples(st.just("steady"), st.integers(1, 8), st.floats(0, 2)),
    st.tuples(st.just("judged"), st.sampled_from([(LR, 0.5), (LR, 2.0), ("grad.clip", 2.0)]), st.floats(0, 2)),
    st.tuples(st.just("judged"), st.tuples(st.just(LR), st.sampled_from([0.5, 0.25, 0.1, 0.05])), st.floats(0, 2)),
    st.tuples(st.just("rare"), st.sampled_from(["restart", "end", "leave"])),
)


def written(steps: list[tuple[Any, ...]]) -> Log:
    rules: dict[str, Any] = {"outcome_ticks": 6, "outcome_samples": 2, "cooldown_ticks": 1}
    log = Log.running(*AGENTS, **rules)
    steady(log, 6, 1.0)
    for step in steps:
        match step:
            case ("ticks", values):
                for value in values:
                    log.tick(loss=value, **{"eval/loss": -value})
            case ("steady", count, value):
                steady(log, count, value)
            case ("judged", (actuator, value), loss):
                log.propose("amy", value, actuator, 0.8, target="loss", expected_change=-0.1)
                log.vote("bob", "for", actuator=actuator)
                log.done("cat", seen=log.ballots[-1].id if log.ballots else "")
                for flight in list(log.mesh.state.in_flight.values())[-1:]:
                    log.receipt(flight.decision)
                steady(log, 8, loss)
            case ("change", actuator, value, target, expected, horizon, second, status):
                more = {"target": target, "expected_change": expected, "horizon": horizon}
                log.propose("amy", value, actuator, 0.8, **more)
                log.vote("cat", "against", actuator=actuator, confidence=0.3)
                log.vote("bob", second, value, actuator, 0.9)
                for flight in list(log.mesh.state.in_flight.values())[:1] if status != "none" else ():
                    log.receipt(flight.decision, status)
            case ("rare", "restart"):
                log.restart(**rules)
            case ("rare", "end"):
                log.end()
                log.restart(**rules)
            case ("rare", "leave"):
                log.status("cat", "left")
                log.join("cat")
    return log


def steady(log: Log, count: int, loss: float) -> None:
    for n in range(count):
        log.tick(loss=loss + n / 100, **{"eval/loss": loss - n / 100})


logs = st.builds(written, st.lists(moves, min_size=8, max_size=40))


@relaxed
@given(logs, st.data())
def test_replicas_agree_and_the_log_replays(log: Log, data: st.DataObject) -> None:
    assert log.mesh.divergence is None and replay(log.events, RUN).same
    cut = data.draw(st.integers(0, len(log.events)))
    first, second = Mesh(RUN), Mesh(RUN)
    for entry in log.events[:cut]:
        first.step(entry)
        second.step(Event.from_line(entry.line()))
    assert [output.message.wire() for output in first.pending.values()] == [
        output.message.wire() for output in second.pending.values()
    ]
    for entry in log.events[cut:]:
        second.step(entry)
    assert second.state.reputations == log.mesh.state.reputations and second.pending == {}


@relaxed
@given(logs)
def test_one_outcome_per_decision_and_no_overlapping_windows_except_in_plans(log: Log) -> None:
    decisions = {decision.id: decision for decision in log.decisions}
    counts = Counter(outcome.decision_id for outcome in log.outcomes)
    assert all(count == 1 for count in counts.values())
    closed: dict[str, tuple[int, int]] = {}  # metric → ticks of the last window's opening and closing
    for entry in log.events:
        if isinstance(entry.body, RunStarted):
            closed.clear()
        if isinstance(entry.body, Outcome):
            outcome = entry.body
            decision = decisions[outcome.decision_id]
            assert outcome.target == decision.target != "" and decision.actuator == outcome.actuator != "run.hold"
            assert decision.verdict == "adopted"
            opened, until = closed.get(outcome.target, (-1, -1))
            assert until <= outcome.from_tick <= outcome.tick or opened == outcome.from_tick
            closed[outcome.target] = outcome.from_tick, outcome.tick


@relaxed
@given(logs)
def test_a_failure_never_becomes_a_number(log: Log) -> None:
    for outcome in log.outcomes:
        figures = (outcome.before, outcome.after, outcome.gain, outcome.noise, outcome.forecast)
        assert all(figure is None or math.isfinite(figure) for figure in figures)
        assert outcome.scored or (outcome.gain is None and outcome.lines == ())
        assert bool(outcome.lines) == outcome.scored
        if outcome.scored:
            back = any(d.actuator == "run.rollback" and d.value is not None for d in log.decisions)
            assert outcome.gain is None or (outcome.samples[0] >= (1 if back else 2) and outcome.samples[1] >= 2)
            assert outcome.beat is not None and 0 <= outcome.beat <= 1
        for line in outcome.lines:
            assert 0 <= line.success <= 1 and -1 <= line.merit <= 1 and 0 <= line.after <= 2
            assert outcome.gain is not None or line.success == outcome.beat in (0, 1)
    assert all(0 <= value <= 2 for value in log.mesh.state.reputations.values())
