"""The arms on made-up gauges whose right answer is plain."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oven_bench.fixed_rules import Change, Rule
from oven_bench.gym.arms import arms
from oven_bench.gym.arms.alarm_rules import (
    BACK,
    MAX_ALARMS,
    QUIET,
    RANDOM_DELAY,
    REMEDIES,
    SKIP,
    Alarm,
    RandomRemedy,
    RemedyOnAlarm,
)
from oven_bench.gym.arms.baselines import LossSpike, NotANumber, Plateau, ZClip
from oven_core.protocol.actuators import ACTUATORS
from oven_core.protocol.messages import ActuatorSpec, MetricSpec, Observation, RunStarted

SCALARS = {
    "optimizer.lr_scale": (0.001, 100.0, 1.0),
    "grad.clip": (0.01, 100.0, 1.0),
    "optimizer.weight_decay": (0.0, 1.0, 0.1),
    "grpo.beta": (0.0, 2.0, 0.04),
}
Gauges = Callable[[int], Mapping[str, float]]
"""Tick → what is seen."""
HELD_OUT = MetricSpec(name="eval/loss", better="down", held_out=True)


def started(*metrics: str, actions: Iterable[str] = ("run.rollback", "data.skip")) -> RunStarted:
    scalars = [
        ActuatorSpec(name=name, kind="scalar", low=low, high=high, value=value)
        for name, (low, high, value) in SCALARS.items()
    ]
    made = [ACTUATORS[name] for name in actions]
    gauges = (*(MetricSpec(name=name) for name in metrics), HELD_OUT)
    return RunStarted(incarnation=1, n=0, recipe="r", actuators=(*scalars, *made), metrics=gauges)


def seen(tick: int, metrics: Mapping[str, float]) -> Observation:
    return Observation(incarnation=1, n=tick, tick=tick, step=tick, progress=0, metrics=dict(metrics))


def run_rule(rule: Rule, gauges: Gauges, ticks: int, run: RunStarted | None = None) -> dict[int, list[Change]]:
    """Tick → what it set."""
    rule.start(run or started("loss"))
    changes_by_tick = {tick: rule.look(seen(tick, gauges(tick))) for tick in range(1, ticks + 1)}
    return {tick: changes for tick, changes in changes_by_tick.items() if changes}


def steady(tick: int) -> dict[str, float]:
    """Falls, with some noise."""
    return {"loss": 3 - 0.005 * tick + 0.05 * Random(tick).gauss(0, 1), "grad_norm": 1 + 0.1 * Random(-tick).random()}


def from_(onset: int, **after: float) -> Gauges:
    return lambda tick: {**steady(tick), **(after if tick >= onset else {})}


def alarms(gauges: Gauges, ticks: int, *metrics: str) -> list[int]:
    alarm = Alarm(started(*(metrics or ("loss",))))
    return [tick for tick in range(1, ticks + 1) if alarm.goes_off(seen(tick, gauges(tick)))]


def test_a_spike_gives_the_alarm_at_its_second_step() -> None:
    assert alarms(lambda t: from_(100, loss=6.0)(t) if t < 104 else steady(t), 200) == [101]


def test_what_is_not_finite_gives_it_at_once_and_so_often_at_most() -> None:
    assert alarms(from_(50, loss=math.nan), 200) == [50 + n * QUIET for n in range(MAX_ALARMS)]
    assert alarms(from_(5, grad_norm=math.inf), 6) == [5], "before there is a median, too"


def test_a_reward_that_drops_gives_it_and_one_that_rises_does_not() -> None:
    def reward(sign: float) -> Gauges:
        return lambda t: {"loss": 0.0, "reward": 0.5 + 0.01 * Random(t).gauss(0, 1) + (sign * 0.4 if t >= 60 else 0)}

    assert alarms(reward(-1), 80, "loss", "reward") == [61]
    assert alarms(reward(+1), 80, "loss", "reward") == []


def test_a_held_out_metric_that_stays_where_it_was_gives_it() -> None:
    def held_out(t: int) -> dict[str, float]:
        return {**steady(t), **({"eval/loss": 3 - 0.01 * min(t, 60)} if t % 20 == 0 else {})}

    assert alarms(held_out, 110) == [100], "the second measurement after the best"


@given(st.lists(st.floats(0, 10) | st.sampled_from([math.nan, math.inf]), min_size=1, max_size=250))
@settings(max_examples=30, deadline=None)
def test_alarms_are_few_and_apart_whatever_is_seen(losses: list[float]) -> None:
    given_ = alarms(lambda t: {"loss": losses[t - 1]}, len(losses))
    assert len(given_) <= MAX_ALARMS
    assert all(later - earlier >= QUIET for earlier, later in pairwise(given_))


def remedy(name: str, run: RunStarted | None = None) -> list[Change]:
    return run_rule(RemedyOnAlarm(REMEDIES[name]), from_(100, loss=6.0), 110, run).get(101, [])


def test_each_remedy_turns_its_knob() -> None:
    back = ("run.rollback", 101 - BACK)
    assert remedy("cut_4") == [("optimizer.lr_scale", 0.25)]
    assert remedy("cut_8") == [("optimizer.lr_scale", 0.125)]
    assert remedy("raise_4") == [("optimizer.lr_scale", 4.0)]
    assert remedy("rollback") == [back]
    assert remedy("rollback_cut_8") == [back, ("optimizer.lr_scale", 0.125)]
    assert remedy("rollback_skip") == [back, ("data.skip", SKIP)]
    assert remedy("lower_weight_decay") == [("optimizer.weight_decay", 0.0125)]
    assert remedy("tighten_clip") == [("grad.clip", 0.125)]
    assert remedy("raise_beta") == [("grpo.beta", 0.16)]


def test_a_knob_that_the_run_lacks_is_left_alone() -> None:
    assert remedy("rollback_skip", started("loss", actions=["run.rollback"])) == [("run.rollback", 101 - BACK)]
    bare = RunStarted(incarnation=1, n=0, recipe="r")
    assert all(remedy(name, bare) == [] for name in REMEDIES)


def test_chance_acts_within_ten_ticks_of_an_alarm_and_not_alike_on_all_faults() -> None:
    drawn = [
        run_rule(RandomRemedy(Random(1)), from_(100, loss=height), 130) for height in (5.0 + n / 7 for n in range(24))
    ]
    assert all(101 <= tick <= 101 + RANDOM_DELAY for each in drawn for tick in [*each][:1])
    assert len({str([*each.values()][:1]) for each in drawn}) >= 5
    assert drawn[0] == run_rule(RandomRemedy(Random(1)), from_(100, loss=5.0), 130), "the same for the same run"
    assert run_rule(RandomRemedy(Random(1)), steady, 200) == {}


def test_a_loss_spike_is_rolled_back_and_skipped_once_in_a_while() -> None:
    changes_by_tick = run_rule(LossSpike(), from_(100, loss=6.0), 110)
    assert list(changes_by_tick.values()) == [
        [("run.rollback", tick - BACK), ("data.skip", SKIP)] for tick in changes_by_tick
    ]
    assert 100 <= min(changes_by_tick) <= 102
    assert run_rule(LossSpike(), steady, 200) == {}
    assert run_rule(LossSpike(), from_(100, loss=6.0), 110, started("loss", "reward")) == {}, "a GRPO loss says nothing"


def test_not_a_number_goes_back_to_what_is_known_to_be_good() -> None:
    once = run_rule(NotANumber(), lambda t: from_(50, grad_norm=math.nan)(t) if t < 51 else steady(t), 60)
    assert once == {50: [("run.rollback", 48), ("optimizer.lr_scale", 0.5)]}
    assert run_rule(NotANumber(), steady, 100) == {}
    assert run_rule(NotANumber(), from_(1, loss=math.nan), 1)[1][0] == ("run.rollback", 0)


def test_zclip_follows_the_norm_and_an_outlier_moves_it_little() -> None:
    def norms(t: int) -> dict[str, float]:
        return {"loss": 1.0, "grad_norm": 1000.0 if t == 80 else 0.4 + 0.02 * Random(t).gauss(0, 1)}

    changes_by_tick = run_rule(ZClip(), norms, 120)
    values = [value for changes in changes_by_tick.values() for _, value in changes]
    assert min(changes_by_tick) == ZClip.WARM_UP
    assert all(name == "grad.clip" for changes in changes_by_tick.values() for name, _ in changes)
    assert all(isinstance(value, float) and 0.4 < value < 0.6 for value in values)
    assert len(values) < 20


def test_plateau_is_torchs_own() -> None:
    def flat(t: int) -> dict[str, float]:
        return {"loss": max(1.0, 3 - 0.1 * t)}

    changes_by_tick = run_rule(Plateau(), flat, 40 * Plateau.EPOCH)
    assert [value for changes in changes_by_tick.values() for _, value in changes] == pytest.approx([0.1, 0.01, 0.001])
    ticks = [*changes_by_tick]
    assert [later - earlier for earlier, later in pairwise(ticks)] == [11 * Plateau.EPOCH, 11 * Plateau.EPOCH]
    assert run_rule(Plateau(), lambda t: {"reward": 0.01 * t}, 60, started("loss", "reward")) == {}


def test_every_arm_has_its_own_name() -> None:
    baselines = {"nothing", "random", "loss_spike", "not_a_number", "zclip", "plateau", "best_checkpoint"}
    assert baselines | {"mesh", "mesh+kg"} | {f"rule.{name}" for name in REMEDIES} <= set(arms())
    assert all(arm.name == name for name, arm in arms().items())
