"""The agent that sees a policy move away from a frontier model's answers: when it speaks, and when it must not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.support import runs

from oven_agents.shipped.drift import BETA, FRONTIER_BITS, FRONTIER_KL, LR_SCALE, Drift
from oven_core.protocol.messages import ActuatorSpec, MetricSpec, Observation, RunStarted, Vote

EVERY = 50
AWAY = (0.01, 0.03, 0.05, 0.08)
POOR = (0.5, 0.52, 0.51, 0.5, 0.49, 0.48)


def run(
    beta: float | None = 0.04, scale: bool = True, metrics: tuple[str, ...] = (FRONTIER_BITS, FRONTIER_KL)
) -> RunStarted:
    made = runs.grpo()
    knobs = [spec for spec in made.actuators if spec.name not in (BETA, LR_SCALE)]
    knobs += [spec for spec in made.actuators if spec.name == LR_SCALE and scale]
    if beta is not None:
        knobs.append(ActuatorSpec(name=BETA, kind="scalar", low=0.0, high=0.4, value=beta))
    published = (*made.metrics, *(MetricSpec(name=name, better="down") for name in metrics))
    return made.model_copy(update={"actuators": tuple(knobs), "metrics": published})


def read(
    bits: Sequence[float], kl: Sequence[float] | None = None, held_out: Sequence[float] = POOR
) -> list[Observation]:
    """A reading every EVERY ticks, and a held-out one beside each, two before them."""
    seen = []
    for index, value in enumerate(held_out):
        metrics = {"reward": 0.7, "eval/accuracy": value}
        if (number := index - (len(held_out) - len(bits))) >= 0:
            metrics |= {FRONTIER_BITS: bits[number]} | ({FRONTIER_KL: kl[number]} if kl else {})
        seen.append(runs.seen(EVERY * (index + 1), metrics))
    return seen


def votes(events: Sequence[Observation], started: RunStarted | None = None) -> list[Vote]:
    return runs.votes(Drift(), started or run(), events)


def test_a_policy_that_drifts_without_a_gain_needs_a_stronger_anchor() -> None:
    [vote] = votes(read(AWAY))
    assert (vote.actuator, vote.stance) == (BETA, "propose") and vote.value == pytest.approx(0.06)
    assert vote.rationale.startswith("frontier/bits_per_byte is 0.08 bits per byte above step 0 and grew at each of 4")
    assert vote.confidence < 0.6, "only tentative"
    assert vote.evidence == ("symptom:frontier_drift", "signal:policy:kl,frontier/bits_per_byte,frontier/kl")


@pytest.mark.parametrize("beta", [None, 0.0, 0.4])
def test_where_beta_cannot_go_up_the_rate_comes_down(beta: float | None) -> None:
    [vote] = votes(read(AWAY), run(beta))
    assert vote.actuator == LR_SCALE and vote.value == pytest.approx(0.67)


SILENT = {
    "small": (tuple(value / 4 for value in AWAY), POOR),
    "a jump that stays": ((0.01, 0.3, 0.3, 0.3), POOR),
    "on its way back": ((0.3, 0.2, 0.1, 0.08), POOR),
    "three readings": (AWAY[1:], POOR),
    "it learns": (AWAY, (0.5, 0.52, 0.55, 0.6, 0.65, 0.7)),
    "not a number": ((0.01, 0.03, float("nan"), 0.08), POOR),
    "better than at first": (tuple(-value for value in reversed(AWAY)), POOR),
}


@pytest.mark.parametrize("case", SILENT)
def test_it_is_silent(case: str) -> None:
    bits, held_out = SILENT[case]
    assert not votes(read(bits, held_out=held_out))


def test_without_the_metric_or_a_knob_it_says_that_it_cannot_fire() -> None:
    bare = run(metrics=()).model_copy(update={"metrics": (MetricSpec(name="reward"),)})
    assert "publishes none of frontier/bits_per_byte" in str(Drift().cannot_fire(bare))
    assert "announces none of" in str(Drift().cannot_fire(run(None, scale=False)))
    assert Drift().cannot_fire(run()) is None
