"""Trials in a Hugging Face trainer, from the order to the receipts: the branch that is kept is the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.attached import THIRD_PARTY, rows, trainer
from tests.support.trial_driver import DrivenTrainer
from tests.support.trial_link import TrialLink, order

from oven_learner.hf.attach import attach

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]
SETTINGS = {"max_steps": 14, "lr_scheduler_type": "cosine", "eval_strategy": "steps", "eval_steps": 100}


def trained(folder: Path, link: TrialLink, **settings: Any) -> DrivenTrainer:
    made = trainer(folder, data=rows(26), **(SETTINGS | settings))
    attach(made, link=link)
    watch = DrivenTrainer(made)
    made.add_callback(watch)
    made.train()
    return watch


def series(link: TrialLink) -> list[tuple[int, int, float]]:
    return [(one.tick, one.step, one.metrics["loss"]) for one in link.observed()]


def test_the_control_is_kept_and_the_run_is_as_without_a_trial(tmp_path: Path) -> None:
    plain, tried = TrialLink(), TrialLink(order(5, {"optimizer.lr_scale": 0.1}))
    one, other = trained(tmp_path / "plain", plain), trained(tmp_path / "tried", tried)
    assert tried.announced() == "eval/loss"
    (ended,) = tried.ended()
    assert (ended.status, ended.kept, ended.steps, ended.extra) == ("completed", 0, 8, 4), ended
    assert ended.arms[1].gain is not None and ended.arms[1].gain < 0
    (receipt,) = tried.receipts()
    assert receipt.status == "skipped" and "the trial kept the control: a gain of -" in receipt.reason
    assert [one.tick for one in tried.branches(0)] == [one.tick for one in tried.branches(1)] == [6, 7, 8, 9]
    assert series(tried) == series(plain), "the run's observations are the control's"
    assert other.seen[14] == one.seen[14], "and its bits"


def test_a_change_is_kept_and_the_run_is_as_if_it_had_been_made_at_once(tmp_path: Path) -> None:
    plain = TrialLink(plan={5: ("optimizer.lr_scale", 3.0)})
    tried = TrialLink(order(5, {"optimizer.lr_scale": 3.0}, margin=0.0))
    one, other = trained(tmp_path / "plain", plain), trained(tmp_path / "tried", tried)
    (ended,) = tried.ended()
    assert (ended.kept, ended.steps, ended.extra) == (1, 8, 4), ended
    (receipt,) = tried.receipts()
    assert (receipt.status, receipt.before, receipt.after, receipt.tick) == ("applied", 1.0, 3.0, 5)
    assert series(tried) == series(plain)
    assert other.seen[14] == one.seen[14]


def test_nothing_held_out_is_read_before_a_trial_needs_it(tmp_path: Path) -> None:
    """A look at a row in advance would be in the means that TRL logs."""
    made = trainer(tmp_path, data=rows(26), **SETTINGS)
    read: list[int] = []
    predict = made.prediction_step
    made.prediction_step = lambda *args, **more: read.append(made.state.global_step) or predict(*args, **more)  # type: ignore[method-assign,func-returns-value]
    link = TrialLink(order(5, {"optimizer.lr_scale": 0.1}))
    attach(made, link=link)
    made.train()
    assert link.announced() == "eval/loss"
    assert set(read[:-1]) == {9}, "at the end of either arm; the last is the trainer's own evaluation"


def test_where_the_control_cannot_be_read_no_further_trial_is_made(tmp_path: Path) -> None:
    plain, tried = TrialLink(), TrialLink(*(order(tick, {"optimizer.lr_scale": 0.1}) for tick in (3, 9)))
    settings: dict[str, Any] = {"eval_strategy": "no"}
    one = trained(tmp_path / "plain", plain, **settings)
    made = trainer(tmp_path / "tried", data=rows(26), **(SETTINGS | settings))
    made.eval_dataset = [{"x": row["x"]} for row in rows(9)]
    attach(made, link=tried)
    watch = DrivenTrainer(made)
    made.add_callback(watch)
    made.train()
    first, second = tried.ended()
    assert (first.status, first.steps, first.extra) == ("refused", 4, 0)
    assert first.reason.startswith("the held-out examples could not be read: ")
    assert (second.status, second.steps, second.reason) == ("refused", 0, first.reason)
    assert watch.seen == one.seen and series(tried) == series(plain), "the training is as it was"
