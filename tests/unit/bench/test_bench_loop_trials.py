"""`bench loop-trials`: its loop at tiny sizes under the real client and controller; its figures from made-up runs."""

from __future__ import annotations

import json
import math

import pytest

pytest.importorskip("torch")

from tests.support.trial_link import TrialLink, order

from oven_bench.gym.trials import loop_trials
from oven_bench.gym.trials.loop_trials import ARMS, RATES, Block, Ended, Run, figures, times, train
from oven_bench.gym.trials.raw_loop import LOWEST, PEAK, RawLoop, Size
from oven_core.protocol.messages import Observation
from oven_core.protocol.trial_messages import TrialEnded
from oven_learner.testing import FakeLink

TINY = Size(steps=12, warmup=3, micro_batches=2, rows=2, evaluate_every=4)


def played(link: FakeLink, **how: bool) -> RawLoop:
    loop = RawLoop(1, 1.0, TINY)
    for _ in loop.train(link, **how):
        pass
    return loop


def test_its_rate_warms_up_and_falls_along_a_cosine() -> None:
    rates = [RawLoop(1, 2.0, TINY).rate(step) for step in range(1, TINY.steps + 1)]
    assert rates[:3] == pytest.approx([2 * PEAK / 3, 4 * PEAK / 3, 2 * PEAK])
    assert rates[-1] == pytest.approx(2 * PEAK * LOWEST)
    assert rates[2:] == sorted(rates[2:], reverse=True)


def test_a_trial_that_keeps_the_control_leaves_the_loop_as_it_was() -> None:
    """The step's rate, both micro-batches and the accumulated gradients are played again as they were."""
    untouched = played(FakeLink())
    link = TrialLink(order(5, {"optimizer.lr_scale": 3.0}, steps=3, cooldown=1, margin=1e9))
    tried = played(link)
    (ended,) = link.ended()
    assert (ended.status, ended.kept, ended.steps) == ("completed", 0, 8)
    assert tried.computed == TINY.steps + ended.extra == TINY.steps + 5
    assert tried.quality() == untouched.quality()
    seen = [message.metrics["loss"] for message in link.sent if isinstance(message, Observation) and message.step]
    assert len(seen) == TINY.steps and all(map(math.isfinite, seen))


def test_a_loop_that_is_not_written_for_trials_announces_none_and_trains_the_same() -> None:
    link = TrialLink()
    assert played(link, tries=False).quality() == played(FakeLink()).quality()
    assert link.announced() == ""


def test_an_arm_is_trained_under_the_whole_controller() -> None:
    off = train(Run("off", "good", 1, TINY))
    assert (off.computed, list(off.trials)) == (TINY.steps, [])
    assert off.loss == train(Run("alone", "good", 1, TINY)).loss, "nothing was decided in twelve steps"


def test_trainings_that_take_turns_are_timed_in_blocks() -> None:
    blocks = loop_trials.timed(1, Size(steps=20, warmup=3, micro_batches=1, rows=2, evaluate_every=10))
    assert len(blocks) == 20 // loop_trials.BLOCK - 1
    assert all(min(block.risky_s, block.off_s, block.without_s) > 0 for block in blocks)


def ended(arm: loop_trials.Arm, rate: str, seed: int, loss: float, *trials: TrialEnded) -> Ended:
    extra = sum(trial.extra for trial in trials)
    return Ended(Run(arm, rate, seed, TINY), loss, 12 + extra, len(trials), trials)


def trial(status: str, kept: int, extra: int) -> TrialEnded:
    return TrialEnded.model_validate(
        {
            "incarnation": 1, "n": 1, "trial": "t", "status": status, "kept": kept, "tick": 1, "step": 1,
            "steps": 2 * extra, "extra": extra, "seconds": 1.0,
        }
    )  # fmt: skip


def test_the_figures_of_each_arm_and_the_differences_of_pairs() -> None:
    offset = {"alone": 0.3, "off": 0.2, "risky": 0.1, "all": 0.25}
    runs = [
        ended(arm, rate, seed, 2.0 + seed + offset[arm], *([trial("completed", 1, 8)] if arm == "risky" else []))
        for arm in ARMS
        for rate in RATES
        for seed in (1, 2)
    ]
    runs.append(ended("all", "high", 3, 5.0, trial("completed", 0, 8), trial("refused", 0, 0)))
    runs += [ended(arm, "high", 3, 5.0) for arm in ARMS if arm != "all"]
    found = figures(runs, [])
    assert found["loss_good_off"] == pytest.approx(3.7)
    assert found["loss_difference_good_risky_off"] == pytest.approx(-0.1)
    assert found["loss_difference_good_all_off"] == pytest.approx(0.05)
    assert (found["trials_good_risky"], found["trials_kept_good_risky"]) == (2, 2)
    assert (found["steps_thrown_away_good_risky"], found["steps_computed_good_risky"]) == (16, 40)
    assert found["thrown_away_share_good_risky"] == 0.4
    assert (found["trials_high_all"], found["trials_kept_high_all"], found["trials_not_made_high_all"]) == (1, 0, 1)
    json.dumps(found, allow_nan=False)


def test_the_ratio_of_times_leaves_out_blocks_with_a_trial() -> None:
    quiet = [Block(1.1 * n, 1.0 * n, 0.5 * n, has_trial=False) for n in (1, 2, 3)]
    found = times([*quiet, Block(9.0, 1.0, 1.0, has_trial=True)])
    assert (found["time_blocks"], found["time_blocks_with_trials"]) == (3, 1)
    assert found["step_time_risky_off"] == found["step_time_risky_off_low"] == 1.1
    assert found["step_time_risky_without"] == pytest.approx(2.2)
    assert times([])["step_time_risky_off"] is None, "what was not measured is no 0"
