"""Alarms: which change of which gauge is which symptom, and what is none."""

from __future__ import annotations

import math
from random import Random

import pytest

from oven_agents.diagnosis.detectors import Alarm, find_alarms
from oven_core.protocol.messages import MetricSpec

TICKS = 200
ONSET = 120


def series(metric: str, before: float, after: float, *, noise: float = 0.02, onset: int = ONSET, until: int = TICKS):  # type: ignore[no-untyped-def]
    draw = Random(metric)
    levels = [after if onset <= tick < until else before for tick in range(1, TICKS + 1)]
    scale = noise * max(abs(before), abs(after))
    return list(range(1, TICKS + 1)), [level + draw.gauss(0, scale) for level in levels]


def raised(specs: list[MetricSpec], **metrics) -> list[Alarm]:  # type: ignore[no-untyped-def]
    return find_alarms({name.replace("__", "/"): item for name, item in metrics.items()}, specs)


@pytest.mark.parametrize(
    ("metric", "before", "after", "symptom"),
    [
        ("loss", 2.0, 3.0, "loss_spike"),
        ("loss", 3.0, 2.0, "loss_drops_suddenly"),
        ("grad_norm", 1.0, 3.0, "grad_norm_growth"),
        ("optim/update_ratio", 0.005, 0.05, "update_ratio_high"),
        ("optim/update_ratio", 0.005, 0.0005, "update_ratio_low"),
        ("reward", 0.8, 0.4, "policy_collapse"),
        ("kl", 0.2, 2.0, "kl_runaway"),
        ("entropy", 0.8, 0.2, "entropy_collapse"),
        ("frac_reward_zero_std", 0.1, 0.7, "zero_advantage_groups"),
        ("completions/mean_length", 100.0, 180.0, "length_drift"),
        ("committee/abstentions", 0.0, 0.5, "judge_outage"),
        ("committee/agreement", 0.8, 0.3, "judge_disagreement"),
        ("data/repeated", 0.0, 0.5, "data_repeated"),
    ],
)
def test_a_lasting_change_raises_its_symptom_with_the_onset(
    metric: str, before: float, after: float, symptom: str
) -> None:
    better = "down" if metric == "loss" else "neither"
    raised_alarms = find_alarms({metric: series(metric, before, after)}, [MetricSpec(name=metric, better=better)])
    alarm = max(raised_alarms, key=lambda alarm: (alarm.detector == "cusum", alarm.size))
    assert alarm.symptom == symptom and abs(alarm.onset - ONSET) <= 3 and alarm.raised <= ONSET + 10
    assert abs(alarm.after - after) < 0.5 * abs(after - before)
    assert not find_alarms({metric: series(metric, before, before)}, [MetricSpec(name=metric, better=better)])


def test_unannounced_metrics_and_a_policys_loss_raise_nothing() -> None:
    jump = series("loss", 2.0, 3.0)
    assert not find_alarms({"loss": jump}, [])
    assert not find_alarms({"loss": jump}, [MetricSpec(name="loss", better="neither")])


def test_nan_spikes_and_unexplained_weight_changes_raise_alarms() -> None:
    ticks, values = series("grad_norm", 1.0, 1.0)
    values[150] = 500.0
    (spike,) = find_alarms({"grad_norm": (ticks, values)}, [MetricSpec(name="grad_norm")])
    assert (spike.symptom, spike.onset, spike.detector) == ("grad_norm_spike", 151, "spike")
    values[160] = math.nan
    raised_alarms = find_alarms({"grad_norm": (ticks, values)}, [MetricSpec(name="grad_norm")])
    assert [(item.symptom, item.onset) for item in raised_alarms] == [("grad_norm_spike", 151), ("loss_nan", 161)]
    norms = [30.0 + 0.01 * tick + (1.0 if tick >= ONSET else 0.0) for tick in ticks]
    specs = [MetricSpec(name="optim/weight_norm"), MetricSpec(name="optim/update_ratio")]
    both = {"optim/weight_norm": (ticks, norms), "optim/update_ratio": series("optim/update_ratio", 0.005, 0.005)}
    displaced = [item for item in find_alarms(both, specs) if item.symptom == "weights_displaced"]
    assert [item.onset for item in displaced] == [ONSET] and displaced[0].detector == "unexplained"


def test_diverging_judges_lost_levels_and_worse_held_out_metrics_raise_alarms() -> None:
    specs = [MetricSpec(name=f"rewards/{judge}/mean") for judge in ("exact", "critic")]
    alone = {"rewards/exact/mean": series("e", 0.6, 0.6), "rewards/critic/mean": series("c", 0.6, 0.9)}
    assert [item.symptom for item in find_alarms(alone, specs)] == ["judges_apart"]
    together = {"rewards/exact/mean": series("e", 0.6, 0.9), "rewards/critic/mean": series("c", 0.6, 0.9)}
    assert not find_alarms(together, specs)
    levels = [MetricSpec(name="reward", better="up"), MetricSpec(name="reward/hard", better="up")]
    falls = {"reward": series("r", 0.6, 0.6), "reward/hard": series("h", 0.6, 0.4)}
    assert [item.symptom for item in find_alarms(falls, levels)] == ["level_forgotten"]
    held_out = MetricSpec(name="eval/loss", better="down", held_out=True)
    ticks = [20, 40, 60, 80, 100, 120]
    assert not find_alarms({"eval/loss": (ticks, [3.0, 2.8, 2.7, 2.65, 2.6, 2.62])}, [held_out])
    (worse,) = find_alarms({"eval/loss": (ticks, [3.0, 2.8, 2.7, 2.65, 2.9, 3.1])}, [held_out])
    assert (worse.symptom, worse.onset) == ("heldout_loss_rises", 100)
    rewarded = [held_out, MetricSpec(name="reward", better="up")]
    (hacked,) = find_alarms({"eval/loss": (ticks, [3.0, 2.8, 2.7, 2.65, 2.9, 3.1])}, rewarded)
    assert hacked.symptom == "reward_up_heldout_down"


def test_garbage_raises_a_bounded_number_of_alarms_in_a_stable_order() -> None:
    specs = [MetricSpec(name=f"sampling/{n}") for n in range(200)]
    many = {spec.name: series(spec.name, 1.0, 5.0) for spec in specs}
    raised_alarms = find_alarms(many, specs)
    assert len(raised_alarms) == 64 and raised_alarms == find_alarms(
        dict(reversed(many.items())), list(reversed(specs))
    )
