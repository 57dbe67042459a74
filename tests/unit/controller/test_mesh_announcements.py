"""An actuator that the learner announces anew while the run goes on: what mesh, agents and summaries make of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.mesh_log import LR, MOVES, SPECS, Log, event

from oven_agents import Agent
from oven_agents.sdk.agent_session import Session
from oven_controller.cli.explain import explanation_lines
from oven_core.protocol.announcements import ActuatorAnnounced, PromptsInjected
from oven_core.protocol.messages import ActuatorSpec, Decision, Observation, Value
from oven_runs.log.explanation import Explanations
from oven_runs.log.explanation_report import report
from oven_runs.log.replay import replay
from oven_runs.log.run_summary import RunSummary

TEACHER = "teacher.active"
KNOWN = {spec.name: spec for spec in SPECS}


def anew(name: str, **changes: Any) -> ActuatorSpec:
    return KNOWN[name].model_copy(update=changes)


def announce(log: Log, spec: ActuatorSpec) -> None:
    tick = log.mesh.state.tick
    log.put("run", ActuatorAnnounced(**log.stamp(), actuator=spec, tick=tick, step=log.step))


def running(**rules: Any) -> Log:
    log = Log.running("amy", "bob", **rules)
    log.tick()
    return log


def test_a_new_choice_can_be_proposed_from_then_on() -> None:
    log = running()
    log.propose("amy", "huge", TEACHER, confidence=0.9)
    assert log.verdict == "rejected" and "choices are none, small, big" in log.last.reason
    announce(log, anew(TEACHER, choices=("none", "small", "big", "huge")))
    log.propose("amy", "huge", TEACHER, confidence=0.9)
    log.vote("bob", "for", actuator=TEACHER, confidence=0.9)
    assert log.verdict == "adopted" and log.last.value == "huge"
    announce(log, anew(TEACHER, choices=("none", "small", "big"), value="small"))
    log.propose("bob", "huge", TEACHER, confidence=0.9)
    assert log.verdict == "rejected" and len(log.decisions) == 3, "a refusal of the new spec is said anew"
    assert replay(log.events, log.mesh.run).same


def test_a_newly_announced_actuator_can_be_proposed() -> None:
    log = running()
    new = ActuatorSpec(name="loss.sft", kind="scalar", low=0, high=1, value=0.25)
    log.join("amy", moves=(*MOVES, new.name))
    log.propose("amy", 0.5, new.name)
    assert "but this run has no such actuator" in log.last.reason
    announce(log, new)
    assert log.mesh.state.effective[new.name] == 0.25
    log.propose("amy", 0.5, new.name)
    assert log.ballots[-1].actuator == new.name


@pytest.mark.parametrize(
    ("spec", "stays"),
    [
        (anew(LR, low=0.001, high=1000), True),
        (anew(LR, low=0.3, high=2), True),
        (anew(LR, low=0.6, high=2), False),
        (anew(LR, scale="linear"), False),
        (anew(LR, value=1.5), True),
    ],
    ids=["wider", "narrower around it", "narrower beside it", "another scale", "another value"],
)
def test_an_open_ballot_stays_if_the_proposed_values_still_fit(spec: ActuatorSpec, stays: bool) -> None:
    log = running()
    log.propose("amy", 0.5)
    announce(log, spec)
    assert (LR in log.mesh.ballots) == stays
    if not stays:
        assert log.verdict == "rejected" and f"announced {LR} again: " in log.last.reason
    assert replay(log.events, log.mesh.run).same


def test_an_announcement_of_another_kind_is_ignored_everywhere() -> None:
    log, session, view = running(), Session(Agent(), "me"), RunSummary()
    announce(log, anew(TEACHER, kind="action", choices=(), value=None))
    assert log.mesh.state.specs[TEACHER].kind == "choice"
    assert log.mesh.state.counters["announced.other_kind"] == 1
    for entry in log.events:
        view.feed(entry)
        session.absorb(entry.body)
    assert view.started is not None and KNOWN[TEACHER] in view.started.actuators
    assert session.knobs[TEACHER].spec == KNOWN[TEACHER]


def test_old_rejections_do_not_bar_a_newly_announced_actuator() -> None:
    log = running(cooldown_ticks=0)
    for _ in range(2):
        log.propose("amy", 0.5, confidence=0.9)
        log.vote("bob", "for", confidence=0.9)
        log.receipt(log.last, "rejected", after=1.0)
        log.tick()
    log.propose("amy", 0.5, confidence=0.9)
    log.vote("bob", "for", confidence=0.9)
    assert "the learner rejected the last 2 changes" in log.last.reason
    announce(log, anew(LR, low=0.05))
    log.propose("amy", 0.5, confidence=0.9)
    log.vote("bob", "for", confidence=0.9)
    assert log.verdict == "adopted"


def test_explain_names_the_announcement_and_the_injected_prompts() -> None:
    log = running()
    announce(log, anew(TEACHER, choices=("none", "small", "big", "huge")))
    log.propose("amy", "huge", TEACHER, confidence=0.9)
    log.vote("bob", "for", actuator=TEACHER, confidence=0.9)
    fields = {
        "by": "ann",
        "why": "harder sums",
        "topic": "sums",
        "hashes": ("a" * 32, "b" * 32),
        "held": 2,
        "evicted": 1,
    }
    log.put("run", PromptsInjected(**log.stamp(), **fields, tick=log.mesh.state.tick, step=1))
    seen, view = Explanations(), RunSummary()
    for entry in log.events:
        seen.feed(entry)
        view.feed(entry)
    match = seen.find(TEACHER)
    assert match is not None
    text = "\n".join(explanation_lines(match))
    assert "earlier: the learner announced teacher.active at step 1: one of none, small, big, huge, now none" in text
    assert "also: ann added 2 prompts to sums at step 1 (2 in total, 1 older ones removed): harder sums" in text
    assert len(report("r", match).model_dump(mode="json")["injected"]) == 1 and (view.injected, view.evicted) == (2, 1)


specs = st.one_of(
    st.sets(st.sampled_from("abcdef"), min_size=1).map(
        lambda names: anew(TEACHER, choices=tuple(sorted(names)), value=min(names))
    ),
    st.tuples(st.floats(0.01, 0.9), st.floats(1.1, 100)).map(lambda ends: anew(LR, low=ends[0], high=ends[1])),
    st.floats(0, 1).map(lambda value: ActuatorSpec(name="loss.sft", kind="scalar", low=0, high=1, value=value)),
)
wanted: st.SearchStrategy[tuple[str, Value]] = st.one_of(
    st.tuples(st.just(TEACHER), st.sampled_from("abcdef")),
    st.tuples(st.just(LR), st.floats(0.01, 100)),
    st.tuples(st.just("loss.sft"), st.floats(0, 1)),
)
moves = st.lists(
    st.one_of(
        st.tuples(st.just("announce"), specs),
        st.tuples(st.just("propose"), st.sampled_from(["amy", "bob"]), wanted),
        st.tuples(st.just("for"), st.sampled_from(["amy", "bob"]), st.sampled_from([TEACHER, LR, "loss.sft"])),
        st.tuples(st.just("tick")),
        st.tuples(st.just("receipt")),
        st.tuples(st.just("restart")),
    ),
    max_size=40,
)


def play(log: Log, step: tuple[Any, ...]) -> None:
    state = log.mesh.state
    match step:
        case ("announce", spec):
            announce(log, spec)
        case ("propose", agent, (actuator, value)):
            log.propose(agent, value, actuator, confidence=0.9)
        case ("for", agent, actuator):
            log.vote(agent, "for", actuator=actuator, confidence=0.9)
        case ("tick",):
            log.tick()
        case ("receipt",):
            for flight in list(state.in_flight.values())[:1]:
                spec = state.spec(flight.decision.actuator)
                fits = spec.kind != "choice" or flight.decision.value in spec.choices
                log.receipt(flight.decision, "applied" if fits else "rejected")
        case ("restart",):
            valid = [spec.model_copy(update={"value": state.effective[spec.name]}) for spec in state.specs.values()]
            log.restart(specs=tuple(valid), tick=state.tick, **state.rules.model_dump())


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(moves)
def test_all_views_agree_for_any_order_of_announcements_and_decisions(steps: list[tuple[Any, ...]]) -> None:
    """Mesh, agent and summary agree on every actuator; what is open fits, and a replay says the same bytes."""
    knobs = (LR, TEACHER, "loss.sft")
    rules: dict[str, Any] = {"alone": knobs, "cooldown_ticks": 0, "max_interventions": 100}
    log = running(**rules)
    for agent in ("amy", "bob"):
        log.join(agent, moves=(*MOVES, "loss.sft"))
    session, view, fed = Session(Agent(), "me"), RunSummary(), 0
    for step in steps:
        play(log, step)
        for entry in log.events[fed:]:
            view.feed(entry)
            session.absorb(entry.body)
        fed = len(log.events)
        state = log.mesh.state
        assert view.started is not None and session.run is not None
        assert {spec.name: spec for spec in view.started.actuators} == state.specs
        assert session.run.actuators == view.started.actuators
        for name in state.specs:
            assert state.effective[name] == view.knobs[name] == session.knobs[name].value
        for actuator, ballot in log.mesh.ballots.items():
            spec = state.specs[actuator]
            assert ballot.misfit_reason(spec, spec) == ""
    assert replay(log.events, log.mesh.run).same


def test_a_receipt_before_the_announcement_keeps_its_value() -> None:
    """An agent's subscriptions have a queue each."""
    log = running()
    log.propose("amy", 2.0, confidence=0.9)
    log.vote("bob", "for", confidence=0.9)
    announce(log, anew(LR, high=50))
    log.receipt(log.last)
    session, late = Session(Agent(), "me"), []
    for entry in log.events:
        if isinstance(entry.body, ActuatorAnnounced):
            late.append(entry.body)
        elif not isinstance(entry.body, Observation | Decision):
            session.absorb(entry.body)
    for body in late:
        session.absorb(body)
    assert session.knobs[LR].value == 2.0 and session.knobs[LR].spec.high == 50


class Follower(Agent):
    moves = ("loss.sft",)


def test_an_agent_that_could_not_fire_joins_again_when_its_actuator_comes() -> None:
    log, session = running(), Session(Follower(), "me")
    for entry in log.events:
        session.absorb(entry.body)
    first = [status.state for status in session.react()]  # type: ignore[union-attr]
    assert first == ["joined", "cannot_fire"], "and it says nothing more until it can act"
    spec = ActuatorSpec(name="loss.sft", kind="scalar", low=0, high=1, value=0.25)
    announcement = ActuatorAnnounced(**log.stamp(), actuator=spec, tick=1, step=1)
    session.absorb(announcement)
    assert [status.state for status in session.react()][:1] == ["joined"]  # type: ignore[union-attr]
    session.absorb(announcement)
    assert session.react() == [], "a copy changes nothing"


def test_an_announcement_of_another_incarnation_is_ignored() -> None:
    log = running()
    late = ActuatorAnnounced(**log.stamp(), actuator=anew(LR, high=5), tick=1, step=1)
    log.restart()
    log.put("run", late)
    assert log.mesh.state.specs[LR].high == 100
    assert event(1, "oven.r.run", late).body == late
