"""The sentinel, and the agents of weight decay and of data, on runs that something was done to."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import runs
from tests.support.runs import receipt

from oven_agents import Agent, Alternatives, Window
from oven_agents.shipped.divergence import ROLLBACK_AND_CUT, ROLLBACK_AND_SKIP, ROLLBACK_ONLY, Divergence
from oven_agents.shipped.grad_clip import GradClip
from oven_agents.shipped.repeated_data import RepeatedData
from oven_agents.shipped.weight_decay import WeightDecay
from oven_core.protocol.messages import Observation, Receipt, RunStarted, Value

ONSET, END = 101, 125
Change = Callable[[int, dict[str, float]], dict[str, float]]


def hurt(change: Change, *, onset: int = ONSET, end: int = END, seed: int = 0) -> list[Observation]:
    """A healthy pretraining run until the onset; from then on `change` says what a step's gauges are instead."""
    healthy = runs.language()

    def gauges(tick: int, draw: random.Random) -> dict[str, float]:
        metrics = healthy(tick, draw)
        return {**metrics, **change(tick - onset, metrics)} if tick >= onset else metrics

    return runs.observed(gauges, range(1, end), seed)


def plans(
    agent: Agent, events: list[Observation | Receipt] | list[Observation]
) -> list[tuple[int, list[str], dict[str, Value]]]:
    """(tick, remedies in the agent's order, what the first sets) of each of its offers."""
    return [
        (
            message.plans[0].votes[0].tick,
            [plan.remedy for plan in message.plans],
            {vote.actuator: vote.value for vote in message.plans[0].votes},
        )
        for message in runs.agent_messages(agent, runs.pretraining(), events)
        if isinstance(message, Alternatives)
    ]


def up(by: float, **factors: float) -> Change:
    """The loss higher by that much, and gauges multiplied."""
    names = {"length": "optim/update_ratio", "rate": "learning_rate", "norm": "grad_norm"}
    return lambda since, metrics: {
        "loss": metrics["loss"] + by,
        **{names[name]: metrics[names[name]] * factor for name, factor in factors.items()},
    }


@pytest.mark.parametrize("seed", range(3))
def test_a_jump_on_the_same_steps_is_rolled_back_and_its_batches_are_skipped(seed: int) -> None:
    tick, remedies, first = plans(Divergence(), hurt(up(2.0, norm=8.0), seed=seed))[0]
    assert (tick, remedies) == (ONSET + 2, [ROLLBACK_AND_SKIP]), "at the third high value; nothing speaks for the rate"
    assert first == {"run.rollback": ONSET - 2.0, "data.skip": 100.0}


def test_a_loss_in_another_unit_waits_for_something_else_to_say_so() -> None:
    def unit(since: int, metrics: dict[str, float]) -> dict[str, float]:
        return {"loss": metrics["loss"] / math.log(2)}

    def worse(since: int, metrics: dict[str, float]) -> dict[str, float]:
        return {**unit(since, metrics), **({"eval/loss": metrics["eval/loss"] + 1} if "eval/loss" in metrics else {})}

    assert not plans(Divergence(), hurt(unit))
    assert plans(Divergence(), hurt(worse, end=ONSET + 30)), "held-out loss says it"


def test_steps_that_grew_at_the_same_rate_speak_for_the_moments() -> None:
    _, remedies, first = plans(Divergence(), hurt(up(0.6, length=5.0)))[0]
    assert remedies == [ROLLBACK_ONLY] and set(first) == {"run.rollback"}, (
        "a cut would only cost: the rate is what it was"
    )


def test_a_jump_that_heals_by_itself_is_left_alone() -> None:
    assert not plans(Divergence(), hurt(lambda since, metrics: {"loss": metrics["loss"] + 4 * 0.6**since}))


@pytest.mark.parametrize("gauge", ["loss", "grad_norm"])
def test_a_nan_is_rolled_back_at_once_and_again(gauge: str) -> None:
    broken = hurt(lambda since, metrics: {gauge: math.nan})
    tick, remedies, first = plans(Divergence(), broken)[0]
    assert (tick, remedies) == (ONSET, [ROLLBACK_AND_SKIP, ROLLBACK_AND_CUT, ROLLBACK_ONLY])
    assert first["run.rollback"] == ONSET - 2
    events: list[Observation | Receipt] = [*broken[:ONSET], receipt(ONSET, "run.rollback"), receipt(ONSET, "data.skip")]
    events[-1] = events[-1].model_copy(update={"n": 2 * ONSET + 2})
    again = plans(Divergence(), [*events, *_after(broken[ONSET:])])
    assert [remedies[0] for tick, remedies, _ in again if tick > ONSET][:1] == [ROLLBACK_AND_CUT], "another one first"


def _after(observations: list[Observation]) -> list[Observation]:
    """The same gauges on steps that began anew ten steps back."""
    return [
        observation.model_copy(update={"step": observation.step - 10, "n": observation.n + 2})
        for observation in observations
    ]


def test_a_remedy_that_did_not_help_is_not_tried_again() -> None:
    jumped = hurt(up(2.0, norm=8.0), end=ONSET + 3)
    tick = ONSET + 2
    again = hurt(up(2.0, norm=8.0), onset=tick + 1, end=tick + 40)[tick:]
    events: list[Observation | Receipt] = [
        *jumped,
        receipt(tick, "run.rollback"),
        receipt(tick, "data.skip").model_copy(update={"n": 2 * tick + 2}),
        *_after(again),
    ]
    assert [vote_tick for vote_tick, _, _ in plans(Divergence(), events)] == [tick]


@pytest.mark.parametrize("moved", [1.0, 1.3])
def test_the_rate_stays_while_something_else_moves_the_weights(moved: float) -> None:
    def change(since: int, metrics: dict[str, float]) -> dict[str, float]:
        return up(2.0, length=2.5)(since, metrics) | {"optim/weight_norm": metrics["optim/weight_norm"] * moved}

    first = receipt(ONSET + 4, "run.rollback", ONSET + 4, ONSET - 2)
    again = receipt(ONSET + 8, "run.rollback", ONSET + 8, ONSET - 2)
    seen: list[Observation | Receipt] = [*hurt(change, end=ONSET + 24)]
    offered = plans(Divergence(), [*seen[: ONSET + 4], first, *seen[ONSET + 4 : ONSET + 8], again, *seen[ONSET + 8 :]])
    assert any(ROLLBACK_AND_CUT in remedies for _, remedies, _ in offered) == (moved == 1.0)


def test_a_gradient_that_got_past_the_clip_is_seen_and_one_that_was_held_is_not() -> None:
    def outlier(length: float) -> Change:
        return lambda since, metrics: {
            "grad_norm": metrics["grad_norm"] * (1000 if since == 0 else 1),
            "optim/update_ratio": metrics["optim/update_ratio"] * length,
        }

    first = plans(Divergence(), hurt(outlier(2.0)))[0]
    assert (first[0], first[1][0]) == (ONSET + 1, ROLLBACK_ONLY)
    assert not plans(Divergence(), hurt(outlier(1.0)))


def test_under_a_reward_an_outlier_is_a_ratio_of_probabilities_and_left_to_the_clip() -> None:
    outlier = {"grad_norm": 600.0, "optim/update_ratio": 0.006}
    healthy = runs.sorting()
    seen = runs.observed(lambda t, draw: healthy(t, draw) | (outlier if t == 100 else {}), range(1, 120))
    assert not runs.agent_messages(Divergence(), runs.grpo(), seen)


def shrink(since: int, metrics: dict[str, float]) -> dict[str, float]:
    return {"optim/weight_norm": 29 * 0.95 ** (since + 1), "optim/update_ratio": 0.052}


def test_a_decay_that_eats_the_weights_is_lowered_with_a_rollback() -> None:
    tick, remedies, first = plans(WeightDecay(), hurt(shrink))[0]
    assert tick <= ONSET + 4 and remedies == ["lower_weight_decay"]
    assert first["optimizer.weight_decay"] == pytest.approx(0.05) and first["run.rollback"] == ONSET - 2
    assert not plans(Divergence(), hurt(shrink)), "and nobody takes it for the rate"


def test_repeated_data_is_skipped_once() -> None:
    repeated = hurt(lambda since, metrics: {"data/repeated": 1.0})
    (vote, *_rest) = runs.votes(RepeatedData(), runs.pretraining(), repeated)
    assert (vote.tick, vote.actuator, vote.value) == (ONSET + 2, "data.skip", 100.0)
    assert vote.target == "eval/loss" and vote.expected_change < 0
    events: list[Observation | Receipt] = [
        *repeated[: vote.tick],
        receipt(vote.tick, "data.skip"),
        *repeated[vote.tick :],
    ]
    assert [cast_vote.tick for cast_vote in runs.votes(RepeatedData(), runs.pretraining(), events)] == [vote.tick]


def loose(run: RunStarted) -> RunStarted:
    """With a clip that lets everything pass."""
    specs = [s.model_copy(update={"value": 50.0}) if s.name == "grad.clip" else s for s in run.actuators]
    return run.model_copy(update={"actuators": tuple(specs)})


def test_recurring_outliers_lower_the_clip_to_their_norm() -> None:
    tight = runs.pretraining()
    spiky = hurt(lambda since, metrics: {"grad_norm": metrics["grad_norm"] * (20 if since % 5 == 0 else 1)})
    vote = runs.votes(GradClip(), loose(tight), spiky)[0]
    assert vote.actuator == "grad.clip" and isinstance(vote.value, float) and 1 < vote.value < 5
    assert not runs.votes(GradClip(), tight, spiky), "a clip of 1 held them"


@pytest.mark.parametrize(("lost", "spoke"), [(0.0, True), (3.0, False)], ids=["regained", "in vain"])
def test_a_jump_is_not_rolled_back_after_rollbacks_that_did_not_help(lost: float, spoke: bool) -> None:
    """An earlier rollback, for something else, and a reading after it."""
    earlier, read_at = ONSET - 20, ONSET - 14
    held = {earlier - 10: 2.6, earlier - 1: 5.6, read_at: 2.6 + lost}

    def events() -> list[Observation | Receipt]:
        history: list[Observation | Receipt] = []
        for o in hurt(up(2.0, norm=8.0), end=ONSET + 6):
            metrics = {name: value for name, value in o.metrics.items() if name != "eval/loss"}
            metrics |= {"eval/loss": held[o.tick]} if o.tick in held else {}
            step = o.tick if o.tick <= earlier else o.tick - 5
            history.append(o.model_copy(update={"metrics": metrics, "step": step}))
            if o.tick == earlier:
                history.append(receipt(earlier, "run.rollback", float(earlier), float(earlier - 5)))
        return history

    assert bool([tick for tick, _, _ in plans(Divergence(), events()) if tick > ONSET]) == spoke


def test_an_outlier_that_recurs_after_a_rollback_is_not_a_single_event() -> None:
    def outliers(since: int, metrics: dict[str, float]) -> dict[str, float]:
        longer = {"optim/update_ratio": 2 * metrics["optim/update_ratio"]}
        return longer | ({"grad_norm": 100.0} if since % 12 == 0 else {})

    events: list[Observation | Receipt] = list(hurt(outliers, end=ONSET + 11))
    back = receipt(ONSET + 10, "run.rollback", float(ONSET + 10), float(ONSET - 2))
    later = [o.model_copy(update={"step": o.step - 12}) for o in hurt(outliers, end=ONSET + 24) if o.tick > ONSET + 10]
    assert [tick for tick, _, _ in plans(Divergence(), events)], "the first is gone back from"
    assert not [tick for tick, _, _ in plans(Divergence(), [*events, back, *later]) if tick > ONSET + 10]


@given(st.lists(st.integers(0, 12), max_size=4), st.integers(1, 10))
def test_discarded_steps_are_not_part_of_the_surviving_series(backs: list[int], between: int) -> None:
    """Against the run as it went: steps that stand are a stack, and a rollback takes off its top."""
    observations: list[Observation] = []
    standing: list[tuple[int, int]] = []
    step, lost = 0, set[int]()
    for back in [*backs, 0]:
        for _ in range(between):
            step += 1
            tick = len(observations) + 1
            observations.append(runs.seen(tick, {"loss": float(tick)}, step))
            standing.append((step, tick))
        standing_ticks, known = list(standing), set(lost)
        lost.add(min(step, back))
        step = max(0, step - back)
        standing = [pair for pair in standing if pair[0] <= step]
    window = Window(runs.pretraining(), observations, {}, [], {})
    expected = [(tick, float(tick)) for _, tick in standing_ticks]
    if 1 not in known:  # one step taken again looks like a step that was seen twice
        assert window.surviving_series("loss") == expected
    assert window.surviving_series("loss", last=3) == window.surviving_series("loss")[-3:]


def test_a_decay_that_makes_the_weights_larger_is_lowered_and_rolled_back() -> None:
    def push(since: int, metrics: dict[str, float]) -> dict[str, float]:
        return {"optim/weight_norm": 29 * 1.02 ** max(0, since), "optim/update_ratio": 0.021}

    def aside(since: int, metrics: dict[str, float]) -> dict[str, float]:
        return push(since, metrics) | {"optim/update_ratio": 0.03}

    tick, remedies, first = plans(WeightDecay(), hurt(push))[0]
    assert tick <= ONSET + 12 and remedies == ["lower_weight_decay"]
    assert first["optimizer.weight_decay"] == pytest.approx(0.01)
    assert first["run.rollback"] in (ONSET - 2.0, ONSET - 1.0)
    assert not plans(WeightDecay(), hurt(aside)), "as where moments broke: two thirds of each step"


@pytest.mark.parametrize("backs", [2, 3])
def test_rollbacks_end_after_three_without_a_new_best(backs: int) -> None:
    seen = hurt(lambda since, metrics: {"optim/weight_norm": 1.2 * metrics["optim/weight_norm"]}, onset=ONSET + 9)
    gone = [receipt(ONSET + i, "run.rollback", float(ONSET + i), float(ONSET + i - 1)) for i in range(backs)]
    events: list[Observation | Receipt] = [*seen[: ONSET + 4], *gone, *seen[ONSET + 4 :]]
    assert bool(plans(Divergence(), events)) == (backs < 3)
