"""What a held-out reading says of a beginning, when one is asked for, and what the sentinel makes of it."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping

import pytest
from tests.support import runs

from oven_agents.sdk.alternative_plans import Alternatives
from oven_agents.sdk.window import Knob, Window
from oven_agents.shipped.divergence import ROLLBACK_AND_SKIP, ROLLBACK_ONLY, SKIP_ONLY, Divergence
from oven_agents.stats.evaluation_request import MAX_REQUESTS, RECENT_TICKS, REQUEST_TICKS, held_out_evidence
from oven_core.protocol.actuators import ACTUATORS
from oven_core.protocol.messages import Observation, Receipt, RunStarted, Vote
from oven_core.protocol.rules import Rules

EVALUATE = ACTUATORS["run.evaluate"]
ONSET = 101


def run(rules: Rules | None = None) -> RunStarted:
    """Pretraining that measures when it is asked to."""
    plain = runs.pretraining()
    return plain.model_copy(update={"actuators": (*plain.actuators, EVALUATE), "rules": rules or Rules()})


def window(
    tick: int, readings: Mapping[int, float], evaluations: tuple[int, ...] = (), started: RunStarted | None = None
) -> Window:
    started = started or run()
    seen = [runs.seen(t, {"eval/loss": readings[t]} if t in readings else {"loss": 2.5}) for t in range(1, tick + 1)]
    receipts = [runs.receipt(asked_tick, "run.evaluate", None, None) for asked_tick in evaluations]
    knobs = {spec.name: Knob(spec, spec.value) for spec in started.actuators}
    return Window(started, seen, knobs, receipts, {})


BEFORE = {60: 2.7, 80: 2.6, 100: 2.55}


def test_without_a_recent_reading_an_evaluation_is_requested() -> None:
    assert held_out_evidence(window(ONSET + 3, BEFORE), ONSET).state == "ask"
    assert held_out_evidence(window(ONSET + 3, BEFORE, (ONSET + 2,)), ONSET).state == "wait"
    assert held_out_evidence(window(ONSET + 2 + RECENT_TICKS, BEFORE, (ONSET + 2,)), ONSET).state == "unknown", (
        "nobody measured it"
    )
    assert held_out_evidence(window(ONSET + REQUEST_TICKS, BEFORE), ONSET).state == "unknown", (
        "nobody heard the question"
    )


@pytest.mark.parametrize(
    ("value", "lost"),
    [(2.53, -0.015 / 2.55), (2.55, 0.005 / 2.55), (2.85, 0.305 / 2.55), (math.nan, math.inf)],
)
def test_a_reading_is_held_against_half_of_the_last_gain(value: float, lost: float) -> None:
    evidence = held_out_evidence(window(ONSET + 4, {**BEFORE, ONSET + 3: value}), ONSET)
    assert evidence.state == "known"
    assert evidence.quality_drop == pytest.approx(lost)


def test_an_evaluation_expires_and_is_requested_a_limited_number_of_times() -> None:
    answered = {**BEFORE, ONSET + 3: 2.53}
    late = ONSET + 3 + RECENT_TICKS
    assert held_out_evidence(window(late, answered, (ONSET + 2,)), ONSET).state == "ask"
    evaluations = tuple(ONSET + 2 - i for i in range(MAX_REQUESTS))
    assert held_out_evidence(window(late, answered, evaluations), ONSET).state == "known"


def events(hurt: float, excess: float = 2.0, moved: float = 1.0) -> list[Observation | Receipt]:
    """A loss that jumps at ONSET by `excess`; held-out loss, measured at its third tick as was asked, by `hurt`. The
    norm of the weights jumps, too, by the factor `moved`."""
    gauges = runs.language()

    def changed(tick: int, draw: random.Random) -> dict[str, float]:
        metrics = gauges(tick, draw)
        if tick < ONSET:
            return metrics
        metrics |= {"loss": metrics["loss"] + excess, "grad_norm": 8 * metrics["grad_norm"]}
        metrics["optim/weight_norm"] *= moved
        return metrics | ({"eval/loss": 2.55 + hurt} if tick == ONSET + 3 else {})

    seen: list[Observation | Receipt] = [*runs.observed(changed, range(1, ONSET + 8), 0)]
    return [*seen[: ONSET + 2], runs.receipt(ONSET + 2, "run.evaluate", None, None), *seen[ONSET + 2 :]]


def remedies_of(events: list[Observation | Receipt]) -> list[str]:
    """What the sentinel says, without what it says again."""
    remedies: list[str] = []
    for word in runs.agent_messages(Divergence(), run(), events):
        if isinstance(word, Alternatives):
            remedies.append(word.plans[0].remedy)
        elif isinstance(word, Vote) and word.stance == "propose":
            remedies.append(word.actuator)
    return list(dict.fromkeys(remedies))


def test_a_jump_that_hurt_the_weights_is_rolled_back() -> None:
    assert remedies_of(events(hurt=1.9)) == ["run.evaluate", ROLLBACK_AND_SKIP]


def test_a_jump_of_the_data_alone_skips_batches_without_a_rollback() -> None:
    assert remedies_of(events(hurt=0.1)) == ["run.evaluate", SKIP_ONLY]


def test_a_jump_that_outlasts_its_skipped_batches_needs_another_evaluation() -> None:
    def after_skipping(hurt: float) -> list[str]:
        first = events(hurt=0.1)
        passed = next(i for i, event in enumerate(first) if event.tick == ONSET + 4)
        later = [
            event.model_copy(update={"metrics": {**event.metrics, "eval/loss": 2.55 + hurt}})
            if isinstance(event, Observation) and event.tick == ONSET + 6
            else event
            for event in first[passed + 1 :]
        ]
        skipped = runs.receipt(ONSET + 4, "data.skip", None, 100.0)
        evaluation = runs.receipt(ONSET + 5, "run.evaluate", None, None)
        return remedies_of([*first[: passed + 1], skipped, *later[:1], evaluation, *later[1:]])

    assert after_skipping(0.1) == ["run.evaluate", SKIP_ONLY], "the loss means something else by now"
    assert after_skipping(1.9) == ["run.evaluate", SKIP_ONLY, ROLLBACK_AND_SKIP]


def test_a_jump_that_hurt_nothing_is_left_alone() -> None:
    assert remedies_of(events(hurt=-0.1)) == ["run.evaluate"]


def test_weights_that_moved_are_rolled_back_only_after_an_evaluation() -> None:
    assert remedies_of(events(hurt=-0.1, excess=0.0, moved=1.2)) == ["run.evaluate"], "a padding that nothing looks up"
    assert remedies_of(events(hurt=0.5, excess=0.0, moved=1.2)) == ["run.evaluate", ROLLBACK_ONLY]
