"""What the monitor shows of a log: pure, by example and by property."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.mesh_log import LR, NOON, Log
from tests.support.monitor_log import recorded
from tests.unit.tui.test_player import plain

from oven_core.protocol.announcements import ActuatorAnnounced, PromptsInjected
from oven_core.protocol.events import Event
from oven_core.protocol.messages import (
    WITHHELD_PREFIX,
    ActuatorSpec,
    AgentStatus,
    BallotOpened,
    Decision,
    Message,
    Observation,
    Receipt,
    RunEnded,
    RunStarted,
    TallyLine,
    Vote,
)
from oven_core.protocol.operator_messages import OperatorCommand
from oven_tui.model import monitor_view as limits
from oven_tui.model.decision_entries import DecisionEntry, Note, matching
from oven_tui.model.monitor_view import MonitorView

EVENTS = recorded()


def fold(events: list[Event]) -> MonitorView:
    view = MonitorView()
    for event in events:
        view.feed(event)
    return view


def seen(view: MonitorView) -> object:
    """All that is shown, in a form that compares (NaN included)."""
    curves = {name: repr(series.columns(0, 400, 120)) for name, series in view.series.items()}
    return (curves, view.rows(), view.marks, view.agents, view.run, view.pace_s, view.curve_names())


def decided(view: MonitorView) -> list[DecisionEntry]:
    return [entry for entry in view.entries if isinstance(entry, DecisionEntry)]


def test_a_decision_is_shown_with_its_votes_evidence_and_receipt() -> None:
    first = decided(fold(EVENTS))[0]
    assert (first.decision.actuator, first.fate, first.proposer) == (LR, "applied", "lr")
    assert "kg:3f5a9c0d1e2b4a67" in first.votes["prior"].evidence
    assert first.receipt is not None and (first.receipt.before, first.receipt.after) == (1.0, 4.0)


def test_fates_of_decisions() -> None:
    assert [(entry.decision.actuator, entry.fate) for entry in decided(fold(EVENTS))] == [
        (LR, "applied"),
        ("data.mixture", "failed"),
        (LR, "rejected"),
        ("run.rollback", "applied"),
    ]


def test_a_ballot_that_comes_after_its_decision_is_not_open() -> None:
    number = next(n for n, event in enumerate(EVENTS) if isinstance(event.body, BallotOpened))
    body = EVENTS[number].body
    assert isinstance(body, BallotOpened)
    rest = [event for event in EVENTS if event is not EVENTS[number]]
    late = replace(EVENTS[number], seq=EVENTS[-1].seq + 1)
    assert body.id not in fold([*rest, late]).open_ballots


def test_adopted_decisions_and_commands_are_marked_on_the_charts() -> None:
    view = fold(EVENTS)
    assert [(author, fate) for _, author, fate in view.marks.values()] == [
        ("lr", "applied"),
        ("curriculum", "failed"),
        ("prior", "applied"),
        ("ann", "operator"),
        ("ann", "operator"),
    ]
    first = decided(view)[0]
    assert first.receipt is not None
    assert view.marks[first.decision.id][0] == first.receipt.tick


def test_agents_live_fall_silent_and_say_why_they_cannot_fire() -> None:
    view = fold(EVENTS)
    assert view.standing("lr") == "live"
    assert view.standing("teacher") == "idle"
    assert view.standing("supervisor-with-a-long-name") == "live"
    view.run.agents["prior"].last_tick = view.run.tick - 61  # more than rules.silent_ticks
    assert view.standing("prior") == "silent"
    assert "no teacher is announced" in view.run.agents["teacher"].idle_reason
    assert (view.run.agents["lr"].proposals, view.run.agents["prior"].against) == (2, 1)


def test_a_notice_is_in_the_list_but_not_one_about_a_withheld_proposal() -> None:
    log = Log.running("amy")
    log.status("amy", "notice", reason="its budget of calls is spent")
    log.status("amy", "notice", reason=f"{WITHHELD_PREFIX}0.5 for {LR}, because decision 1 on {LR} has no receipt yet")
    notes = [entry.text for entry in fold(log.events).rows() if isinstance(entry, Note) and entry.author == "amy"]
    assert notes == ["its budget of calls is spent"]


def test_what_is_charted_is_known_from_the_announcement_before_anything_is_measured() -> None:
    begun = next(n for n, event in enumerate(EVENTS) if isinstance(event.body, RunStarted))
    assert "reward" in fold(EVENTS[: begun + 1]).curve_names() or LR in fold(EVENTS[: begun + 1]).curve_names()


def test_what_is_announced_while_the_run_continues_is_a_note_and_a_curve() -> None:
    log = Log.running("amy")
    log.tick()
    spec = ActuatorSpec(name="loss.sft", kind="scalar", low=0, high=1, value=0.25)
    log.put("run", ActuatorAnnounced(**log.stamp(), actuator=spec, tick=1, step=1))
    fields = {"by": "ann", "why": "they lag", "topic": "sums", "hashes": ("a",), "held": 1, "tick": 1, "step": 1}
    log.put("run", PromptsInjected(**log.stamp(), **fields))
    view = fold(log.events)
    notes = [entry.text for entry in view.entries if isinstance(entry, Note)]
    assert notes[-2:] == [
        "announced loss.sft at step 1: 0 to 1, now 0.25",
        "ann added 1 prompt to sums at step 1 (1 in total): they lag",
    ]
    assert view.series["loss.sft"].last == 0.25 and "loss.sft" in view.curve_names()


def test_steps_go_back_after_a_rollback_and_ticks_do_not() -> None:
    view = fold(EVENTS)
    rollback = next(entry for entry in decided(view) if entry.decision.actuator == "run.rollback")
    assert rollback.receipt is not None
    assert view.step_at(rollback.receipt.tick + 1) < view.step_at(rollback.receipt.tick)
    assert view.step_at(view.run.tick + 10) == view.run.step + 10


def test_noise_is_counted_and_kept_apart() -> None:
    view = fold(EVENTS)
    assert view.run.malformed == 1


@settings(max_examples=30)
@given(st.integers(0, len(EVENTS)), st.integers(0, len(EVENTS)))
def test_the_fold_of_a_prefix_and_the_rest_is_the_fold_of_the_whole(cut: int, back: int) -> None:
    """Wherever it is cut, and with events that are delivered again in between."""
    view = fold(EVENTS[:cut])
    for event in [*EVENTS[max(0, cut - back) : cut], *EVENTS[cut:]]:
        view.feed(event)
    assert seen(view) == seen(fold(EVENTS))


@settings(max_examples=30)
@given(st.integers(0, len(EVENTS)))
def test_a_frozen_copy_stays_as_it_is(cut: int) -> None:
    view = fold(EVENTS[:cut])
    frozen = view.frozen_copy()
    for event in EVENTS[cut:]:
        view.feed(event)
    assert plain(frozen) == plain(fold(EVENTS[:cut]))


NAMES = st.sampled_from(["lr", "prior", LR, "run.rollback", "", "eval/x", "\x1b[2J", "名前"]) | st.text(max_size=8)
REALS = st.floats(allow_nan=True, allow_infinity=True)
TICKS = st.integers(0, 2**53)
VALUES = st.none() | REALS | NAMES | st.dictionaries(NAMES, REALS, max_size=3)
LEARNER = {"incarnation": st.integers(1, 3), "n": st.integers(0, 9)}
LINES = st.builds(TallyLine, agent=NAMES, stance=st.sampled_from(["propose", "for", "against", "silent"]), value=VALUES)
MESSAGES: dict[str, st.SearchStrategy[Message]] = {
    "run": st.builds(RunStarted, **LEARNER, recipe=NAMES, tick=TICKS, step=TICKS)
    | st.builds(RunEnded, **LEARNER, reason=st.just("failed"), detail=NAMES, tick=TICKS, step=TICKS),
    "observation": st.builds(
        Observation,
        **LEARNER,
        tick=TICKS,
        step=TICKS,
        progress=st.floats(0, 1),
        metrics=st.dictionaries(NAMES, REALS, max_size=4),
    ),
    "agent.lr": st.builds(
        AgentStatus, state=st.sampled_from(["joined", "done", "cannot_fire", "left"]), tick=TICKS, reason=NAMES
    ),
    "vote.lr": st.builds(
        Vote, actuator=NAMES, ballot=NAMES, stance=st.just("for"), tick=TICKS, value=VALUES, confidence=st.floats(0, 1)
    ),
    "ballot.b": st.builds(
        BallotOpened,
        id=NAMES,
        actuator=NAMES,
        proposal=VALUES,
        opened_by=NAMES,
        tick=TICKS,
        closes_at_tick=TICKS,
        eligible=st.lists(NAMES, max_size=3).map(tuple),
    ),
    "decision.d": st.builds(
        Decision,
        id=NAMES,
        ballot=NAMES,
        actuator=NAMES,
        verdict=st.sampled_from(["adopted", "rejected"]),
        value=VALUES,
        before=VALUES,
        reason=NAMES,
        tally=st.lists(LINES, max_size=3).map(tuple),
        tick=TICKS,
        apply_at_tick=TICKS,
        expires_at_tick=TICKS,
    ),
    "receipt": st.builds(
        Receipt,
        **LEARNER,
        decision_id=NAMES,
        actuator=NAMES,
        status=st.sampled_from(["applied", "noop", "rejected", "expired", "unknown"]),
        before=VALUES,
        after=VALUES,
        tick=TICKS,
        step=TICKS,
    ),
}
WIRE = st.one_of(
    *(st.tuples(st.just(subject), made.map(lambda m: m.wire())) for subject, made in MESSAGES.items()),
    st.tuples(st.sampled_from([*MESSAGES, "nonsense", ""]), st.binary(max_size=40)),
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(WIRE, max_size=20))
def test_nothing_that_can_stand_in_a_log_breaks_it(wires: list[tuple[str, bytes]]) -> None:
    view = MonitorView()
    for seq, (subject, data) in enumerate(wires, 1):
        view.feed(Event.read(seq, f"oven.r.{subject}", data, NOON + timedelta(seconds=seq)))
        assert view.state(0) in ("waiting", "live", "held", "ended")
    for name in view.agents:
        view.standing(name)
    for name in view.curve_names():
        view.style(name)
    for entry in view.rows():
        matching("agent:lr !step:3 [")(entry)
        _ = (entry.fate, entry.proposer) if isinstance(entry, DecisionEntry) else None
    view.step_at(view.end_tick() or 5)
    view.frozen_copy()


def test_names_and_entries_without_end_are_left_out_and_counted() -> None:
    view = MonitorView()
    metrics = {f"m{n}": 1.0 for n in range(limits.MAX_METRICS + 10)}
    seen = Observation(incarnation=1, n=1, tick=1, step=1, progress=0, metrics=metrics)
    view.feed(Event.read(1, "oven.r.observation", seen.wire(), NOON))
    assert (len(view.series), view.omitted_count) == (limits.MAX_METRICS, 10)
    for n in range(limits.MAX_AGENTS + 5):
        view.feed(Event.read(2 + n, f"oven.r.agent.a{n}", AgentStatus(state="joined").wire(), NOON))
    assert len(view.agents) == limits.MAX_AGENTS
    for n in range(1000, 1000 + 3 * limits.MAX_ENTRIES):
        command = OperatorCommand(id=str(n), action="resume")
        view.feed(Event.read(n, "oven.r.operator.ann", command.wire(), NOON))
    assert len(view.entries) <= limits.MAX_ENTRIES + 256
    assert view.dropped_count + len(view.entries) == 3 * limits.MAX_ENTRIES
    assert len(view.marks) <= limits.MAX_MARKS
