"""What holds for every log, not only for those somebody thought of."""

import json
import math
from collections import Counter
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.support.mesh_log import LR, MOVES, NOON, RUN, SPECS, Log

from oven_core.mesh.outputs import Output
from oven_core.mesh.state_machine import Mesh
from oven_core.protocol.events import Event
from oven_core.protocol.messages import Decision, MetricSpec, Observation, Receipt
from oven_runs.log.replay import replay

relaxed = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])

AGENTS = ("amy", "bob", "cat", "dan")
MIX = "data.mixture"
COOLDOWN, BUDGET, FACTOR = 3, 2, 4.0
INTERVENES = {spec.name: spec.intervenes for spec in SPECS}

numbers = st.one_of(st.floats(0.01, 100), st.floats(), st.sampled_from([0.0, 1.0, 0.25, 4.0, 1e308, 5e-324]))
mixtures = (
    st.tuples(*[st.integers(0, 10)] * 3)
    .filter(any)
    .map(lambda parts: {name: part / sum(parts) for name, part in zip(("web", "code", "math"), parts, strict=True)})
)
values = st.one_of(numbers, mixtures, st.sampled_from(["none", "small", "big", "x"]), st.none())
confidences = st.sampled_from([0.0, 0.3, 0.6, 0.7, 0.85, 1.0])
agents = st.sampled_from(AGENTS)

fitting = st.one_of(
    st.tuples(st.just(LR), st.floats(0.01, 100)),
    st.tuples(st.just("grad.clip"), st.floats(0, 10)),
    st.tuples(st.just("teacher.active"), st.sampled_from(["none", "small", "big"])),
    st.tuples(st.just(MIX), mixtures),
    st.tuples(st.just("run.rollback"), st.none() | st.floats(0, 100)),
)
stances = st.sampled_from(["for", "for", "for", "against", "abstain"])

moves = st.one_of(
    st.tuples(st.just("campaign"), fitting, st.lists(st.tuples(stances, confidences), min_size=1, max_size=2)),
    st.tuples(st.just("campaign"), fitting, st.just([("for", 1.0), ("abstain", 0.0)])),
    st.tuples(st.just("tick"), st.integers(1, 3)),
    st.tuples(st.just("receipt"), st.sampled_from(["applied", "applied", "noop", "rejected", "expired"])),
    st.tuples(st.just("propose"), agents, fitting.map(lambda pair: pair[1]), st.sampled_from(MOVES), confidences),
    st.tuples(st.just("propose"), agents, values, st.sampled_from(MOVES), confidences),
    st.tuples(st.just("vote"), agents, stances, st.sampled_from(MOVES), confidences),
    st.tuples(st.just("done"), agents, st.booleans()),
    st.tuples(st.just("join"), agents),
    st.tuples(st.just("rare"), agents, st.sampled_from(["left", "restart", "bytes"])),
)


def written(steps: list[tuple[Any, ...]], lockstep: bool = False, **more: Any) -> Log:
    """A log in which four agents and a learner did these things. `more`: rules, and the learner's metrics."""
    log = Log()
    rules: dict[str, Any] = {
        "cooldown_ticks": COOLDOWN,
        "max_interventions": BUDGET,
        "silent_ticks": 6,
        "max_factor": FACTOR,
        "alone": {"amy": (LR,)},
        **more,
    }
    log.start(lockstep=lockstep, **rules)
    for agent in AGENTS[:3]:
        log.join(agent)
    for step in steps:
        voted(log, step)
        match step:
            case ("tick", count):
                log.tick(count)
                for agent in AGENTS if lockstep else ():
                    log.done(agent)
            case ("receipt", status):
                for flight in list(log.mesh.state.in_flight.values())[:1]:
                    log.receipt(flight.decision, status)
            case ("rare", _, "restart"):
                log.restart(lockstep=lockstep, **rules)
    return log


def voted(log: Log, step: tuple[Any, ...]) -> None:
    """What agents say."""
    match step:
        case ("join", agent):
            log.join(agent)
        case ("done", agent, saw):
            log.done(agent, seen=log.ballots[-1].id if saw and log.ballots else "")
        case ("campaign", (actuator, value), votes):
            log.propose("amy", value, actuator, 0.9)
            for name, (stance, confidence) in zip(("bob", "cat"), votes, strict=False):
                log.vote(name, stance, actuator=actuator, confidence=confidence)
        case ("propose", agent, value, actuator, confidence):
            log.propose(agent, value, actuator, confidence)
        case ("vote", agent, stance, actuator, confidence):
            log.vote(agent, stance, actuator=actuator, confidence=confidence)
        case ("rare", agent, "left"):
            log.status(agent, "left")
        case ("rare", agent, "bytes"):
            log.put(f"vote.{agent}", b'{"type":')


logs = st.builds(written, st.lists(moves, min_size=5, max_size=40), st.booleans())


def texts(outputs: Any) -> list[tuple[str, bytes]]:
    return [(output.subject, output.message.wire()) for output in outputs]


@relaxed
@given(logs)
def test_a_second_replica_writes_the_same_bytes(log: Log) -> None:
    replica = Mesh(RUN)
    emitted = [output for entry in log.events for output in replica.step(entry)]
    assert texts(emitted) == texts(log.outputs)
    assert replica.divergence is None and log.mesh.divergence is None and replica.pending == {}
    report = replay(log.events, RUN)
    assert report.same and report.equal == len(log.outputs) and not report.pending


@relaxed
@given(logs, st.data())
def test_a_replica_that_starts_anywhere_has_the_same_pending(log: Log, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(log.events)))
    first, second = Mesh(RUN), Mesh(RUN)
    emitted = [output for entry in log.events[:cut] for output in first.step(entry)]
    for entry in (Event.from_line(entry.line()) for entry in log.events[:cut]):
        second.step(entry)
    logged = {entry.subject for entry in log.events[:cut]}
    assert texts(second.pending.values()) == texts(first.pending.values())
    assert texts(second.pending.values()) == texts(output for output in emitted if output.subject not in logged)
    late = [output for entry in log.events[cut:] for output in second.step(entry)]
    assert texts(emitted + late) == texts(log.outputs)


@relaxed
@given(logs, st.data())
def test_repeats_of_learner_messages_change_nothing(log: Log, data: st.DataObject) -> None:
    mesh, emitted = Mesh(RUN), list[Output]()
    sent_events: list[Event] = []
    for entry in log.events:
        emitted += mesh.step(entry)
        if entry.subject in (mesh.subjects.run, mesh.subjects.observation, mesh.subjects.receipt):
            sent_events.append(entry)
        index = data.draw(st.integers(-len(sent_events), len(sent_events) - 1)) if sent_events else -1
        if index >= 0:
            repeat = sent_events[index]
            emitted += mesh.step(Event.read(entry.seq + 1, repeat.subject, repeat.data, NOON))
    assert texts(emitted) == texts(log.outputs)


@relaxed
@given(logs)
def test_adopted_decisions_keep_every_limit(log: Log) -> None:
    adopted = [decision for decision in log.decisions if decision.verdict == "adopted"]
    assert sum(INTERVENES[decision.actuator] for decision in adopted) <= BUDGET
    last: dict[str, int] = {}
    for decision in adopted:
        assert decision.tick - last.get(decision.actuator, -COOLDOWN) >= COOLDOWN
        last[decision.actuator] = decision.tick
        assert decision.apply_at_tick == decision.tick + 1
        within(decision)
    assert all(count == 1 for count in Counter(output.subject for output in log.outputs).values())
    assert all(math.isfinite(line.weight) for decision in log.decisions for line in decision.tally)


CHANGES = st.sampled_from([LR, f"{LR}:up", f"{LR}:down", MIX, "grad.clip", "run.rollback", "teacher.active"])
agreed = st.tuples(st.just("campaign"), fitting, st.just([("for", 1.0), ("abstain", 0.0)]))
NEEDS = st.sampled_from(["held_out", "metric:eval/*", "metric:kl", "actuator:run.hold", "actuator:grpo.beta", "gpu:8"])
METRICS = (MetricSpec(name="kl"), MetricSpec(name="eval/loss", held_out=True))


@relaxed
@given(
    st.lists(agreed | moves, min_size=5, max_size=40),
    st.lists(st.tuples(CHANGES, NEEDS), max_size=2),
    st.lists(st.tuples(CHANGES, CHANGES), min_size=1, max_size=6),
    st.sampled_from([(), METRICS[:1], METRICS]),
)
def test_adopted_decisions_meet_their_needs_and_contradict_nothing_in_flight(
    steps: Any, requires: Any, contradictions: Any, metrics: Any
) -> None:
    log = written(steps, metrics=metrics, requires=requires, contradictions=contradictions, max_interventions=9)
    met = {"actuator:run.hold", *(f"metric:{metric.name}" for metric in metrics)}
    met |= {"held_out", "metric:eval/*"} if METRICS[1] in metrics else set()
    lacking = {change for change, need in requires if need not in met}
    flying: dict[str, Decision] = {}
    tick = 0
    for entry in log.events:
        if isinstance(entry.body, Observation):
            tick = entry.body.tick
        elif isinstance(entry.body, Receipt):
            flying.pop(entry.body.decision_id, None)
        elif isinstance(entry.body, Decision) and entry.body.verdict == "adopted":
            mine = spelt(entry.body)
            assert not mine & lacking
            for pending in flying.values():
                theirs = spelt(pending) if tick <= pending.expires_at_tick else set()
                assert not any((a in mine and b in theirs) or (b in mine and a in theirs) for a, b in contradictions)
            flying[entry.body.id] = entry.body
    assert replay(log.events, RUN).same


def spelt(decision: Decision) -> set[str]:
    """Every pattern that names the change."""
    value, before = decision.value, decision.before
    if isinstance(value, float) and isinstance(before, float):
        return {decision.actuator, f"{decision.actuator}:{'up' if value > before else 'down'}"}
    return {decision.actuator}


def within(decision: Decision) -> None:
    spec = next(spec for spec in SPECS if spec.name == decision.actuator)
    value, before = decision.value, decision.before
    if spec.kind == "scalar":
        assert isinstance(value, float) and spec.low is not None and spec.high is not None
        assert spec.low <= value <= spec.high
        if isinstance(before, float) and spec.scale == "log":
            assert before / FACTOR * 0.999999 <= value <= before * FACTOR * 1.000001
        elif isinstance(before, float):
            assert abs(value - before) <= 0.25 * (spec.high - spec.low) * 1.000001
    elif spec.kind == "choice":
        assert value in spec.choices and value != before
    elif spec.kind == "simplex":
        assert isinstance(value, dict) and list(value) == list(spec.choices)
        assert abs(math.fsum(value.values()) - 1) < 1e-6 and min(value.values()) >= 0
        if isinstance(before, dict):
            assert 0.5 * math.fsum(abs(value[name] - before[name]) for name in value) <= 0.7 * 1.000001


@relaxed
@given(
    st.lists(st.tuples(st.one_of(st.floats(0.01, 100)), confidences), min_size=2, max_size=5),
    st.lists(st.tuples(mixtures, confidences), min_size=2, max_size=5),
    st.randoms(use_true_random=False),
)
def test_neither_names_nor_order_move_the_merged_value(scalars: Any, mixed: Any, random: Any) -> None:
    for actuator, votes in ((LR, scalars), (MIX, mixed)):
        results = set()
        for _ in range(4):
            names = [f"agent{n}" for n in range(len(votes))]
            random.shuffle(names)
            ballots = list(zip(names, votes, strict=True))
            random.shuffle(ballots)
            log = Log.running(*sorted(names), evidence_kinds=1, majority=0.51, least_confidence=0.0)
            for name, (value, confidence) in ballots:
                log.propose(name, value, actuator, confidence)
            verdict, value = log.last.verdict, log.last.value
            results.add((verdict, json.dumps(value) if verdict == "adopted" else ""))
        assert len(results) == 1


def sample() -> list[tuple[str, bytes]]:
    """One of everything that can stand in a log, to be damaged by hypothesis."""
    log = Log.running("amy", "bob", alone=(LR,))
    log.propose("amy", 0.5, confidence=0.9)
    log.propose("bob", {"web": 0.2, "code": 0.6, "math": 0.2}, MIX)
    log.done("bob", seen="9")
    log.receipt(log.last)
    log.tick()
    log.operator("a", "hold")
    log.restart(lockstep=True)
    log.tick()
    log.end()
    return [(entry.subject.split(".", 2)[2], entry.data) for entry in log.events]


SAMPLE = sample()
odd = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 5),
    st.sampled_from([10**400, 2**53, 2**53 + 1, "NaN", "Infinity", "", "joined", "left", "against", LR, MIX, [], {}]),
    st.floats(),
    st.text(max_size=8),
    st.dictionaries(st.sampled_from(["web", "code", "math", "amy"]), st.floats()),
    st.just([{"name": LR, "kind": "scalar", "scale": "log", "low": "Infinity", "high": "NaN", "value": -1}]),
    st.just([{"name": MIX, "kind": "simplex", "choices": ["a", "a"], "value": {"a": 1}}]),
)


@st.composite
def damaged(draw: st.DrawFn) -> tuple[str, bytes]:
    """A real message with some of its fields replaced, or bytes, on its own subject or another's."""
    subject, data = draw(st.sampled_from(SAMPLE))
    if draw(st.integers(0, 9)) == 0:
        subject = draw(st.sampled_from(["vote.a b", "agent.é", "outcome.1", "", "vote", "x.y", "decision.1", "step.x"]))
    if draw(st.integers(0, 9)) == 0:
        return subject, draw(st.binary(max_size=30))
    body = json.loads(data)
    if "n" in body:
        body["n"] = draw(st.integers(0, 10**6))
    if draw(st.integers(0, 2)) == 0:
        body[draw(st.sampled_from(sorted(set(body) - {"type", "v"})))] = draw(odd)
    return subject, json.dumps(body).encode()


def observation_at_step(step: int) -> bytes:
    body = {"v": 1, "incarnation": 1, "n": 1, "type": "Observation", "tick": 1, "step": step, "progress": 0.0}
    return json.dumps({**body, "metrics": {"loss": 1.0}}).encode()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(damaged(), max_size=25))
@example([("observation", observation_at_step(10**400))])
def test_no_input_makes_it_raise(inputs: list[tuple[str, bytes]]) -> None:
    log = Log.running("amy", "bob", alone=(LR,))
    for subject, data in inputs:
        log.put(subject, data)
    for agent in ("amy", "bob"):
        for actuator in MOVES:
            log.propose(agent, 0.5, actuator, 0.9)
    log.tick(4)


@relaxed
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "name": st.sampled_from(MOVES),
                "kind": st.sampled_from(["scalar", "choice", "simplex", "action"]),
                "scale": st.sampled_from(["linear", "log"]),
                "low": st.none() | st.floats(),
                "high": st.none() | st.floats(),
                "choices": st.lists(st.sampled_from(["web", "code", "math", "none"]), max_size=4),
                "value": values,
            }
        ),
        max_size=6,
    ),
    st.lists(st.tuples(agents, values, st.sampled_from(MOVES), confidences), max_size=20),
)
def test_no_announcement_makes_it_raise(specs: Any, votes: Any) -> None:
    log = Log(echo=True)
    body = {"type": "RunStarted", "incarnation": 1, "n": 0, "recipe": "x", "actuators": specs}
    log.put("run", json.dumps(body).encode())
    log.n = 1
    for agent in AGENTS:
        log.join(agent)
    for agent, value, actuator, confidence in votes:
        log.propose(agent, value, actuator, confidence)
    log.tick(4)
    assert log.mesh.divergence is None
