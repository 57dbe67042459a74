"""Events of different subjects may overtake one another on their way to an agent: it must come to the same mind."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from oven_agents import Agent, Window
from oven_agents.sdk.agent_session import Session
from oven_agents.sdk.alternative_plans import without_graph
from oven_core.protocol.messages import (
    ActuatorSpec,
    BallotOpened,
    Decision,
    LogMessage,
    MetricSpec,
    Observation,
    Receipt,
    RunStarted,
    Vote,
)
from oven_core.protocol.rules import Rules

CLIP = "grad.clip"
RUN = RunStarted(
    incarnation=1, n=0, recipe="made up", metrics=(MetricSpec(name="loss"),), rules=Rules(cooldown_ticks=2),
    actuators=(ActuatorSpec(name=CLIP, kind="scalar", scale="log", low=0.1, high=10, value=1.0),),
)  # fmt: skip


class Tells(Agent):
    """Proposes, with all that it sees as its reason."""

    moves = (CLIP,)

    def vote(self, window: Window) -> Vote:
        ticks = [observation.tick for observation in window.observations]
        sees = f"{ticks} {window.knobs[CLIP].value} {window.knobs[CLIP].changed_at} {sorted(window.open_ballots)}"
        return window.propose(CLIP, 2.0, confidence=0.5, why=sees)


def a_run(rounds: int, answered: bool) -> list[LogMessage]:
    """In the log's order: each round two observations, a ballot, its decision, and its receipt (the last: perhaps)."""
    log: list[LogMessage] = [RUN]
    n = tick = 0
    for turn in range(1, rounds + 1):
        for _ in range(2):
            n, tick = n + 1, tick + 1
            log.append(Observation(incarnation=1, n=n, tick=tick, step=tick, progress=0, metrics={"loss": 1.0}))
        ballot, decision, value = f"{turn:012d}-00", f"{turn:012d}-01", float(1 + turn % 2)
        log.append(
            BallotOpened(
                id=ballot, actuator=CLIP, proposal=value, opened_by="other", tick=tick,
                closes_at_tick=tick + 1, eligible=("me",),
            )
        )  # fmt: skip
        log.append(
            Decision(
                id=decision, ballot=ballot, actuator=CLIP, verdict="adopted", value=value, reason="", tally=(),
                tick=tick, apply_at_tick=tick + 1, expires_at_tick=tick + 9,
            )
        )  # fmt: skip
        if turn < rounds or answered:
            n += 1
            log.append(
                Receipt(
                    incarnation=1, n=n, tick=tick, step=tick, decision_id=decision, actuator=CLIP, status="applied",
                    before=1.0, after=value,
                )
            )  # fmt: skip
    for _ in range(3):
        n, tick = n + 1, tick + 1
        log.append(Observation(incarnation=1, n=n, tick=tick, step=tick, progress=0, metrics={"loss": 1.0}))
    return log


def votes_of(events: Sequence[LogMessage]) -> list[str]:
    session = Session(Tells(), "me")
    for event in events:
        session.absorb(event)
    return [message.wire().decode() for message in without_graph(session.react())]


def test_events_without_a_change_of_settings_do_not_change_votes() -> None:
    """A hold, and the refusal of somebody's vote: the window is not reset, and nothing cools down."""
    log = a_run(1, answered=True)
    refusal = Decision(
        id="000000000009-00", ballot="", actuator=CLIP, verdict="rejected", value=99.0, reason="outside its bounds",
        tally=(), tick=5, apply_at_tick=6, expires_at_tick=9,
    )  # fmt: skip
    held = Receipt(
        incarnation=1, n=90, tick=5, step=5, command="c", actuator="run.hold", status="applied", reason="a look"
    )
    assert votes_of([*log, refusal, held]) == votes_of(log)
    operators = refusal.model_copy(update={"verdict": "adopted"})
    assert votes_of([*log, operators]) != votes_of(log), "what an operator set is in flight"


@given(st.integers(1, 5), st.booleans(), st.booleans(), st.randoms(use_true_random=False))
def test_any_interleaving_of_the_subjects_leads_to_the_same_words(
    rounds: int, answered: bool, twice: bool, random: object
) -> None:
    log = a_run(rounds, answered)
    lanes: dict[str, list[LogMessage]] = {}
    for body in log:
        lanes.setdefault(body.type, []).append(body)
    mixed: list[LogMessage] = []
    while lanes:
        kind = random.choice(sorted(lanes))  # type: ignore[attr-defined]
        mixed.append(lanes[kind].pop(0))
        if not lanes[kind]:
            del lanes[kind]
    expected = votes_of(log)
    assert any('"propose"' in line for line in expected) == answered, "in flight without its receipt, and only then"
    assert votes_of(mixed) == expected
    assert votes_of([*mixed, *log] if twice else [*log, *mixed]) == expected, "and what comes again changes nothing"
