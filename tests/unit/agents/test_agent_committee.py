"""The committee's agent on made-up gauges: it speaks on held-out evidence, and on nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from oven_agents.sdk.agent_session import Session
from oven_agents.shipped.reward_weights import REWARD_WEIGHTS, RewardWeights
from oven_agents.stats.confidence import TENTATIVE_CONFIDENCE
from oven_core.protocol.messages import ActuatorSpec, MetricSpec, Observation, Receipt, RunStarted, Value, Vote

SHARES = {"exact": 0.5, "judge": 0.5, "format": 0.0}
ACCURACY = MetricSpec(name="eval/accuracy", better="up", held_out=True)
Course = Callable[[float], float]


def started(*held_out: MetricSpec, shares: dict[str, float] = SHARES) -> RunStarted:
    members = tuple(MetricSpec(name=f"rewards/{member}/mean") for member in shares)
    knob = ActuatorSpec(name=REWARD_WEIGHTS, kind="simplex", low=0, high=1, choices=tuple(shares), value=shares)
    return RunStarted(incarnation=1, n=0, recipe="r", metrics=(*held_out, *members), actuators=(knob,))


def observed(
    courses: dict[str, Course], ticks: int = 200, every: int = 20, noise: float = 0.03, seed: int = 0, first: int = 1
) -> list[Observation]:
    """Gauges that follow courses over the run's progress: members at every tick, held-out ones at evaluations."""
    rng = random.Random(seed)
    observations = []
    for tick in range(first, ticks + 1):
        progress = tick / ticks
        metrics = {
            (name if "/" in name else f"rewards/{name}/mean"): course(progress) + rng.gauss(0, noise)
            for name, course in courses.items()
            if "/" not in name or tick % every == 0
        }
        observations.append(
            Observation(incarnation=1, n=2 * tick, tick=tick, step=tick, progress=progress, metrics=metrics)
        )
    return observations


def votes(observations: list[Observation], run: RunStarted | None = None) -> list[Vote]:
    session = Session(RewardWeights(), "committee")
    session.absorb(run or started(ACCURACY))
    cast_votes = []
    for observation in observations:
        session.absorb(observation)
        cast_votes += [message for message in session.react() if isinstance(message, Vote)]
        assert not session.problems, session.problems
    return cast_votes


def up_then_down(progress: float) -> float:
    return 0.4 + 0.8 * progress if progress < 0.4 else 0.72 - 0.5 * (progress - 0.4)


FOOLED: dict[str, Course] = {
    "eval/accuracy": up_then_down,
    "exact": up_then_down,
    "judge": lambda progress: 0.3 + 0.6 * progress,
    "format": lambda progress: 1.0,
}


@pytest.mark.parametrize("seed", range(5))
def test_a_member_that_rises_while_the_held_out_falls_gives_half_its_share_to_one_that_saw_it(seed: int) -> None:
    cast_votes = votes(observed(FOOLED, seed=seed))
    assert cast_votes[0].value == {"exact": 0.75, "judge": 0.25, "format": 0.0}
    assert cast_votes[0].target == "eval/accuracy" and cast_votes[0].expected_change > 0
    assert cast_votes[0].evidence == (
        "symptom:reward_up_heldout_down",
        "signal:judges:rewards/exact/mean,rewards/judge/mean,rewards/format/mean",
    )
    assert "judge rose" in cast_votes[0].rationale and "exact fell" in cast_votes[0].rationale
    assert {vote.confidence for vote in cast_votes} <= {TENTATIVE_CONFIDENCE, RewardWeights.CLEAR_CONFIDENCE}


@pytest.mark.parametrize("seed", range(5))
def test_a_fall_from_the_very_first_evaluation_is_seen(seed: int) -> None:
    falling: dict[str, Course] = {
        "eval/accuracy": lambda progress: 0.6 - 0.5 * progress,
        "exact": lambda progress: 0.5 - 0.4 * progress,
        "judge": lambda progress: 0.5 + 0.4 * progress,
        "format": lambda progress: 1.0,
    }
    cast_votes = votes(observed(falling, ticks=60, every=4, seed=seed))
    assert cast_votes[0].value == {"exact": 0.75, "judge": 0.25, "format": 0.0}


CALM: dict[str, dict[str, Course]] = {
    "everything rises": dict.fromkeys(("eval/accuracy", "exact", "judge"), lambda progress: 0.3 + 0.5 * progress),
    "the proxy rises over a plateau": {
        "eval/accuracy": lambda progress: min(0.96, 0.5 + 2 * progress), "exact": lambda progress: 0.4 + 0.5 * progress,
        "judge": lambda progress: 0.4 + 0.5 * progress,
    },
    "everything collapses": dict.fromkeys(("eval/accuracy", "exact", "judge"), lambda progress: 0.8 - 0.7 * progress),
    "all members are fooled": {
        "eval/accuracy": up_then_down, "exact": lambda progress: 0.3 + 0.5 * progress,
        "judge": lambda progress: 0.3 + 0.6 * progress,
    },
    "nothing but noise": dict.fromkeys(("eval/accuracy", "exact", "judge"), lambda progress: 0.9),
    "a member without weight rises": {
        "eval/accuracy": up_then_down, "exact": up_then_down, "judge": up_then_down,
        "format": lambda progress: 0.3 + 0.6 * progress,
    },
}  # fmt: skip


@pytest.mark.parametrize("course", CALM)
@pytest.mark.parametrize("seed", range(4))
def test_no_vote_in_calm_courses(course: str, seed: int) -> None:
    quiet: dict[str, Course] = {"format": lambda progress: 1.0}
    assert not votes(observed(quiet | CALM[course], ticks=400, noise=0.015, seed=seed))


@pytest.mark.parametrize(
    ("actuator", "before", "after"),
    [
        (REWARD_WEIGHTS, SHARES, {"exact": 0.75, "judge": 0.25, "format": 0.0}),
        ("committee.judge", "claude/sonnet", "deepseek/chat"),
    ],
)
def test_a_change_of_weights_or_of_a_judge_starts_the_count_again(actuator: str, before: Value, after: Value) -> None:
    seen = observed(FOOLED, ticks=400)
    first = votes(seen)[0].tick
    session = Session(RewardWeights(), "committee")
    session.absorb(started(ACCURACY))
    cast_votes = []
    for observation in seen:
        session.absorb(observation)
        if observation.tick == first:
            session.absorb(
                Receipt(
                    incarnation=1, n=2 * first + 1, decision_id="d", actuator=actuator, status="applied", before=before,
                    after=after, tick=first, step=first,
                )
            )  # fmt: skip
        cast_votes += [message for message in session.react() if isinstance(message, Vote)]
    later = [vote.tick for vote in cast_votes if vote.tick > first]
    assert later and later[0] >= first + 80


def test_a_restarted_agent_votes_like_one_that_was_not() -> None:
    seen = observed(FOOLED)
    late = Session(RewardWeights(), "committee")
    late.absorb(started(ACCURACY))
    for observation in seen[:-1]:
        late.absorb(observation)
    late.react()
    late.absorb(seen[-1])
    fresh = [message for message in late.react() if isinstance(message, Vote)]
    assert fresh == votes(seen)[-1:]
