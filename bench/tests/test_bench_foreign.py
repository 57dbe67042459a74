"""`bench foreign`: its cases, what it reads from a log, and both arms of tiny runs of the scripts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.support.attached import THIRD_PARTY
from tests.support.installed import installed

from oven_bench.foreign.case import Case
from oven_bench.foreign.case_grid import INIT_STDS, KINDS, STARTS, WIDTHS, Kind, cells
from oven_bench.foreign.command import Options, report, tasks
from oven_bench.foreign.controller_actions import Change, Reading, rate_checks
from oven_bench.foreign.paired_run import Pair, play_pair
from oven_bench.foreign.script_run import DEFAULT, Run, Task, load, scripts_folder
from oven_core.errors import ConfigError

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]
__all__ = ["installed"]

SCRIPTS = DEFAULT


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "adafactor"])
def test_each_optimizer_meets_every_width_and_every_deviation(optimizer: str) -> None:
    of_it = [cell for cell in cells() if cell.optimizer == optimizer]
    assert [cell.kind.name for cell in of_it[:: len(STARTS)]] == [kind.name for kind in KINDS]
    assert {cell.width for cell in of_it} == set(WIDTHS)
    assert {cell.init_std for cell in of_it} == set(INIT_STDS)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_each_kind_meets_three_widths_and_every_deviation(kind: Kind) -> None:
    of_it = [cell for cell in cells() if cell.kind is kind]
    assert len({cell.width for cell in of_it}) == 3
    assert {cell.init_std for cell in of_it} == set(INIT_STDS)
    for optimizer in kind.centres:
        models = [(cell.width, cell.init_std, cell.start) for cell in of_it if cell.optimizer == optimizer]
        assert len(models) == len(STARTS) and len({model[:2] for model in models}) == 1, "all starts of one model"


def test_a_start_is_a_multiple_of_the_tuned_rate() -> None:
    rates = {cell.start: cell.case(100, 0.02).lr for cell in cells(["clm-plain/sgd"])}
    assert rates == {"tuned": 0.02, "high": pytest.approx(0.2), "low": pytest.approx(0.002)}


def test_what_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="clm-warmup/adamw"):
        cells(["rnn"])
    with pytest.raises(ConfigError, match="hgih"):
        tasks(Options(only="clm", starts="hgih", scripts=SCRIPTS))
    with pytest.raises(ConfigError, match="no training scripts"):
        scripts_folder(SCRIPTS / "none")


def test_a_script_without_train_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("x = 1\n")
    with pytest.raises(ConfigError, match="no function train"):
        load(tmp_path / "other.py")
    with pytest.raises(ConfigError, match="there is no training script"):
        load(tmp_path / "none.py")


def change(tick: int, after: float, actuator: str = "optimizer.lr_scale") -> Change:
    return Change(tick, tick, 1, actuator, 1.0, after, "lr", "why")


def test_the_rate_after_a_receipt_is_held_against_schedule_times_scale() -> None:
    own = [[1.0, 0.9, 0.8, 0.7, 0.6]]
    reading = Reading([change(2, 0.5)], steps=[[1, 2, 3, 4, 5]], began=[0])
    right = rate_checks(reading, [[1.0, 0.9, 0.4, 0.35, 0.3]], own)
    wrong = rate_checks(reading, own, own)
    assert [check.matches for check in right] == [True]
    assert [(check.matches, check.used, check.expected) for check in wrong] == [(False, 0.8, 0.4)]


def test_a_rollback_sets_the_schedule_back() -> None:
    """At tick 3 the run goes back to step 1 and halves its rate: its next step is the second once more."""
    own = [[1.0, 0.9, 0.8, 0.7, 0.6]]
    reading = Reading([change(3, 0.5), change(3, 1.0, "run.rollback")], steps=[[1, 2, 3, 2, 3]], began=[0])
    assert [check.matches for check in rate_checks(reading, [[1.0, 0.9, 0.8, 0.45, 0.4]], own)] == [True]
    assert [check.matches for check in rate_checks(reading, [[1.0, 0.9, 0.8, 0.35, 0.3]], own)] == [False]


def test_ticks_count_on_in_a_second_training() -> None:
    """Its rates are the second optimizer's, and its schedule begins again."""
    own = [[1.0, 0.9, 0.8], [0.1, 0.09, 0.08]]
    second = Change(4, 1, 2, "optimizer.lr_scale", 1.0, 0.5, "lr", "why")
    reading = Reading([second], steps=[[1, 2, 3], [1, 2, 3]], began=[0, 3])
    assert [check.matches for check in rate_checks(reading, [own[0], [0.1, 0.045, 0.04]], own)] == [True]
    assert [check.used for check in rate_checks(reading, own, own)] == [0.09]


def test_a_run_that_failed_is_in_no_figure() -> None:
    task = Task("clm-plain/sgd", "tuned", "clm_trainer.py", Case(steps=100), True)
    alone = Run(task, 2.0, "loss", "down", [], 1.0)
    good = Pair(Run(task, 2.0, "loss", "down", [], 1.0, Reading([change(2, 0.5)])), alone, [])
    failed = Pair(Run(task, None, "", "", [], 1.0, error="KeyError: 'x'"), alone, [])
    found = report([good, failed])
    assert found.figures["failed_with_controller"] == 1 and found.rows[0]["verdict"] == "WORSE (1 lost)"
    assert found.figures["tuned_changes_per_1000_steps"] == 10.0 and found.failures == [failed.line()]
    assert report([failed]).figures["tuned_changes_per_1000_steps"] is None, "not measured"
    assert "FAILED" in failed.line() and "0 changes" not in failed.line() and failed.gain is None


def played(kind: str, case: Case) -> Pair:
    script = next(one.script for one in KINDS if one.name == kind)
    return play_pair(Task(f"{kind}/{case.optimizer}", "tuned", str(SCRIPTS / f"{script}.py"), case, True), both=True)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("kind", ["clm-warmup", "nanogpt-cosine", "accelerate"])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "adafactor"])
def test_without_a_change_both_arms_are_the_same_training(kind: str, optimizer: str) -> None:
    recipe = next(one for one in KINDS if one.name == kind)
    case = Case(optimizer, 1e-3, recipe.schedule, 0.25, width=16, seed=100, steps=4)  # type: ignore[arg-type]
    found = played(kind, case)
    assert found.controlled.error == "" and found.alone is not None
    assert found.controlled.reading.changes == [] and found.same_bits
    rates = found.controlled.rates
    assert [len(steps) for steps in rates] == [4] and max(rates[0]) == pytest.approx(1e-3)
    measured_first = [] if kind.startswith("clm") else [0]  # `connect` evaluates once before the first step
    assert found.controlled.reading.steps == [[*measured_first, 1, 2, 3, 4]]
    if optimizer == "adamw":  # once for each script: it draws by its seed, whatever the optimizer is
        other = played(kind, replace(case, seed=101))
        assert other.controlled.final != found.controlled.final, "a seed is another training"


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("kind", "optimizer", "steps"), [("grpo", "sgd", [[1, 2, 3]]), ("two-trainers", "adamw", [[1], [1, 2]])]
)
def test_grpo_and_a_second_trainer_are_the_same_training_too(kind: str, optimizer: str, steps: list[list[int]]) -> None:
    recipe = next(one for one in KINDS if one.name == kind)
    case = Case(optimizer, 1e-4, recipe.schedule, width=16, seed=100, steps=3)  # type: ignore[arg-type]
    found = played(kind, case)
    assert found.controlled.error == "" and found.controlled.metric == "held-out reward" and found.same_bits
    assert found.controlled.reading.steps == steps, "one incarnation per trainer"
    assert [len(used) for used in found.controlled.rates] == [len(of) for of in steps], "the warm-up is no training"
    assert found.controlled.reading.began == [0, 1][: len(steps)]
    # Under β the evaluation's loss is the KL term, which rises as the policy learns: it must not stand for the run.
    assert found.controlled.reading.held_out == [["eval/loss"], ["eval/reward"]][-len(steps) :]
