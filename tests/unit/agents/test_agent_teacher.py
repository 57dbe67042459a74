"""The teacher agent on made-up gauges whose right answer is plain."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.gauges import receipt

from oven_agents.sdk.agent_session import Session
from oven_agents.shipped.teacher import BETA, TEACHER, Teacher
from oven_agents.stats.confidence import FIRM_CONFIDENCE
from oven_core.protocol.actuators import ACTUATORS
from oven_core.protocol.messages import (
    ActuatorSpec,
    LearnerMessage,
    MetricSpec,
    Observation,
    Receipt,
    RunStarted,
    Vote,
)

LEAST = 2 * Teacher.HALF
NAMES = ("small", "middle", "strong")

SIGNAL = "signal:policy:kl,reward"


def started(
    active: str = "small", beta: float = 1.0, *, without: Sequence[str] = (), ceiling: float | None = 1.0
) -> RunStarted:
    metrics = (
        MetricSpec(name="kl"),
        MetricSpec(name="reward"),
        MetricSpec(name="reward/easy", ceiling=ceiling),
        MetricSpec(name="reward/hard", ceiling=ceiling),
        MetricSpec(name="eval/accuracy/hard", better="up", held_out=True, ceiling=1.0),
        MetricSpec(name="eval/accuracy", better="up", held_out=True, ceiling=1.0),
    )
    knobs = (
        ActuatorSpec(name=TEACHER, kind="choice", choices=NAMES, value=active),
        ActuatorSpec(name=BETA, kind="scalar", scale="log", low=0.01, high=10, value=beta),
        ACTUATORS["run.rollback"],
    )
    return RunStarted(
        incarnation=1, n=0, recipe="r", metrics=tuple(m for m in metrics if not m.name.startswith(tuple(without))),
        actuators=tuple(knob for knob in knobs if knob.name not in without),
    )  # fmt: skip


def seen(tick: int, reward: float, kl: float, held_out: float | None = None, progress: float = 0.3) -> Observation:
    spread = min(reward, 1 - reward) / 4 if math.isfinite(reward) else 0.0
    metrics = {"kl": kl, "reward": reward, "reward/easy": reward + spread, "reward/hard": reward - spread}
    metrics |= {} if held_out is None else {"eval/accuracy": held_out, "eval/accuracy/hard": 0.2}
    return Observation(incarnation=1, n=2 * tick, tick=tick, step=tick, progress=progress, metrics=metrics)


def steps(
    count: int, reward: float, kl: float, *, rise: float = 0.0, growth: float = 0.0, after: int = 0, **more: float
) -> list[Observation]:
    """Noise of a step's own size around a line; held-out accuracy every tenth step, a little above the reward."""
    draw = random.Random(f"{reward} {after}")
    made = []
    for i in range(count):
        level = reward + rise * i
        held_out = min(1.0, level + 0.1) if i % 10 == 0 else None
        noisy = min(1.0, max(0.0, level + draw.gauss(0, 0.02)))
        made.append(seen(after + 1 + i, noisy, (kl + growth * i) * (1 + draw.gauss(0, 0.08)), held_out, **more))
    return made


def changed(tick: int, actuator: str, before: float | str, after: float | str, status: str = "applied") -> Receipt:
    made = receipt(tick, actuator, before, after)
    return made.model_copy(update={"n": 2 * tick + 1, "status": status})


def tell(session: Session, *events: LearnerMessage) -> list[Vote]:
    """What it answers to all of them together."""
    for event in events:
        session.absorb(event)
    return [message for message in session.react() if isinstance(message, Vote)]


def votes(events: Iterable[LearnerMessage], run: RunStarted | None = None) -> list[tuple[int, Vote]]:
    """(tick, vote), with the receipts and observations given; a vote is not carried out by itself."""
    session = Session(Teacher(), "teacher")
    cast_votes = []
    for event in (run or started(), *events):
        cast_votes += [(vote.tick, vote) for vote in tell(session, event)]
        assert not session.problems, session.problems
    return cast_votes


def test_a_plateau_under_a_binding_anchor_brings_the_next_stronger_teacher() -> None:
    cast_votes = votes(steps(40, 0.5, 0.15))
    tick, vote = cast_votes[0]
    assert tick == LEAST, "not from the start"
    assert (vote.actuator, vote.value, vote.target) == (TEACHER, "middle", "eval/accuracy")
    assert vote.confidence >= FIRM_CONFIDENCE and vote.evidence == ("symptom:kl_anchor_binds", SIGNAL)
    assert "beta × KL 0.1" in vote.rationale and "small → middle" in vote.rationale


def test_with_no_stronger_teacher_beta_is_lowered() -> None:
    for run in (started("strong"), started(without=[TEACHER])):
        _, vote = votes(steps(40, 0.5, 0.15), run)[0]
        assert vote.actuator == BETA and vote.value == pytest.approx(1 / 3)
    assert not votes(steps(40, 0.5, 20.0), started("strong", beta=0.01)), "it lies at its bound"


@pytest.mark.parametrize(
    "observations",
    [
        steps(120, 0.4, 0.1, rise=0.005),
        steps(40, 0.5, 0.05, growth=0.004),
        steps(120, 0.5, 0.02),
        steps(120, 0.93, 0.15),
        steps(120, 0.5, 0.15, progress=0.95),
    ],
    ids=["it learns", "the KL is free to grow", "the KL counts for little", "no headroom", "too late"],
)
def test_no_vote_without_a_binding_anchor(observations: list[Observation]) -> None:
    assert not votes(observations)


def test_a_kl_that_runs_away_without_a_gain_raises_beta() -> None:
    def drift(held_out: float) -> list[Observation]:
        return [*steps(20, 0.5, 0.05), *(seen(t, 0.5 - t / 1000, 0.06 * (t - 19), held_out) for t in range(21, 40))]

    assert not votes(drift(0.6), started("strong", beta=0.1)), "held-out quality did not fall"
    _, vote = votes(drift(0.55), started("strong", beta=0.1))[0]
    assert vote.actuator == BETA and vote.value == pytest.approx(0.3)
    assert vote.evidence == ("symptom:kl_runaway", SIGNAL)


def absorbed(*, reward: float = 0.5, rise: float = 0.0, past: float = 0.2, now: float = 0.01) -> list[Observation]:
    """The KL to the teacher falls, and then stays where it fell to; at β = 1 it counts for little there."""
    fall = steps(24, reward, past, growth=(now - past) / 24, rise=rise)
    return [*fall, *steps(60, reward + 24 * rise, now, rise=rise, after=24)]


def test_a_teacher_that_is_absorbed_gives_way_to_the_next_stronger_one() -> None:
    tick, vote = votes(absorbed())[0]
    assert tick >= 3 * Teacher.HALF
    assert (vote.actuator, vote.value, vote.evidence) == (TEACHER, "middle", ("symptom:reward_plateau", SIGNAL))
    assert (
        vote.rationale.startswith("the policy has absorbed small: the KL fell from 0.1")
        and "to 0.010" in vote.rationale
    )
    assert vote.confidence >= FIRM_CONFIDENCE


@pytest.mark.parametrize(
    ("observations", "run"),
    [
        (absorbed(rise=0.006, reward=0.2), started()),
        (absorbed(past=0.015), started()),
        (absorbed(reward=0.92), started()),
        (absorbed(), started("strong", beta=0.01)),
        (steps(120, 0.5, 0.01), started()),
        ([*steps(30, 0.5, 0.03), *steps(15, 0.5, 9.0, after=30), *steps(60, 0.5, 0.03, after=45)], started()),
        ([seen(t, 0.5, 0.3 if t == 1 else 0.01, 0.6) for t in range(1, 100)], started()),
        ([seen(t, 0.5, 0.3 if t < 60 else 0.001, 0.6) for t in range(1, 72)], started(beta=0.01)),
    ],
    ids=[
        "it learns",
        "little fell",
        "no headroom",
        "none is stronger",
        "never high",
        "it leapt",
        "one step",
        "a short dip",
    ],
)
def test_a_teacher_that_still_helps_is_not_called_absorbed(observations: list[Observation], run: RunStarted) -> None:
    assert not [vote for _, vote in votes(observations, run) if "absorbed" in vote.rationale]


def test_a_teacher_that_made_it_worse_is_left_and_not_tried_again() -> None:
    swapped = [*steps(30, 0.5, 0.15), changed(30, TEACHER, "small", "middle"), *steps(30, 0.3, 0.3, after=30)]
    tick, back = votes(swapped)[-1]
    assert tick == 60 and (back.actuator, back.value) == (TEACHER, "small")
    assert back.evidence == ("symptom:reward_fell_after_swap", SIGNAL) and "fell from 0.50" in back.rationale
    settled = [*swapped, changed(60, TEACHER, "middle", "small"), *steps(60, 0.5, 0.15, after=60)]
    assert {vote.value for tick, vote in votes(settled) if tick > 60} == {"strong"}


def test_a_swap_stays_while_it_helps() -> None:
    """As recorded: the KL to the new teacher falls while the reward rises, and both settle near the ceiling."""
    better = []
    for t in range(1, 120):
        reward, kl = 0.9 - 0.4 * math.exp(-t / 20), 0.1 + 1.2 * math.exp(-t / 10)
        better.append(seen(30 + t, reward, kl, 0.95 if t > 30 else None))
    events = [*steps(30, 0.5, 0.15), changed(30, TEACHER, "small", "strong"), *better]
    assert not [tick for tick, _ in votes(events) if tick > 30]


def test_an_agent_that_was_restarted_votes_alike() -> None:
    events = [*steps(30, 0.5, 0.15), changed(30, TEACHER, "small", "middle"), *steps(40, 0.3, 0.3, after=30)]
    live = votes(events)[-1]
    assert tell(Session(Teacher(), "teacher"), started(), *events) == [live[1]]


RATES = st.floats(0, 1) | st.just(math.nan)


@given(
    st.lists(st.tuples(RATES, st.floats(0, 5) | st.just(math.nan)), min_size=20, max_size=70),
    RATES,
    st.lists(st.tuples(st.integers(1, 70), st.sampled_from(NAMES), st.sampled_from(NAMES)), max_size=3),
)
def test_any_events_keep_to_headroom_patience_and_bounds(
    pairs: list[tuple[float, float]], held_out: float, swaps: list[tuple[int, str, str]]
) -> None:
    receipts = {tick: changed(tick, TEACHER, before, after) for tick, before, after in swaps}
    events: list[LearnerMessage] = []
    for tick, (reward, kl) in enumerate(pairs, 1):
        events += [seen(tick, reward, kl, held_out), *([receipts[tick]] if tick in receipts else [])]
    for tick, vote in votes(events):
        last = max((changed_at for changed_at in receipts if changed_at < tick), default=0)
        assert tick - last >= LEAST
        assert 1 - held_out >= Teacher.MIN_HEADROOM
        recent = [reward for reward, _ in pairs[tick - Teacher.HALF : tick]]
        assert sum(recent) / len(recent) <= 1 - Teacher.MIN_HEADROOM + 1e-9
        assert vote.value in NAMES if vote.actuator == TEACHER else 0.01 <= float(str(vote.value)) <= 10
