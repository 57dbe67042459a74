"""`bench foreign`: its cases, verdicts and checks of rates, and both arms of tiny runs of the scripts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import TypeAdapter

pytest.importorskip("torch")

from tests.support.attached import THIRD_PARTY
from tests.support.installed import installed

from oven_bench.foreign.case import Case
from oven_bench.foreign.case_grid import INIT_STDS, KINDS, STARTS, WIDTHS, cells
from oven_bench.foreign.command import Options, report, tasks
from oven_bench.foreign.controller_actions import Actions, Change, RateCheck, rate_checks
from oven_bench.foreign.script_run import DEFAULT, Pair, Run, Task, load, play_pair, scripts_folder
from oven_bench.foreign.tuned_rates import key, read
from oven_bench.foreign.verdicts import SeedResult, cell_result, cell_results, totals
from oven_bench.study import ResultsFile
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


def test_a_start_is_a_multiple_of_the_tuned_rate() -> None:
    rates = {cell.start: cell.case(100, 0.02).lr for cell in cells(["clm-plain/sgd"])}
    assert rates == {"tuned": 0.02, "high": pytest.approx(0.2), "low": pytest.approx(0.002)}


def test_what_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="clm-warmup/adamw"):
        cells(["rnn"])
    with pytest.raises(ConfigError, match="hgih"):
        tasks(Options(only="clm", starts="hgih", scripts=SCRIPTS))
    with pytest.raises(ConfigError, match="there are no training scripts"):
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
    actions = Actions([change(2, 0.5)], steps=[[1, 2, 3, 4, 5]], first_ticks=[0])
    right = rate_checks(actions, [[1.0, 0.9, 0.4, 0.35, 0.3]], own)
    wrong = rate_checks(actions, own, own)
    assert [check.matches for check in right] == [True]
    assert [(check.matches, check.used, check.expected) for check in wrong] == [(False, 0.8, 0.4)]


def test_a_rollback_sets_the_schedule_back() -> None:
    """At tick 3 the run goes back to step 1 and halves its rate: its next step is the second once more."""
    own = [[1.0, 0.9, 0.8, 0.7, 0.6]]
    actions = Actions([change(3, 0.5), change(3, 1.0, "run.rollback")], steps=[[1, 2, 3, 2, 3]], first_ticks=[0])
    assert [check.matches for check in rate_checks(actions, [[1.0, 0.9, 0.8, 0.45, 0.4]], own)] == [True]
    assert [check.matches for check in rate_checks(actions, [[1.0, 0.9, 0.8, 0.35, 0.3]], own)] == [False]


def test_ticks_count_on_in_a_second_training() -> None:
    """Its rates are the second optimizer's, and its schedule begins again."""
    own = [[1.0, 0.9, 0.8], [0.1, 0.09, 0.08]]
    second = Change(4, 1, 2, "optimizer.lr_scale", 1.0, 0.5, "lr", "why")
    actions = Actions([second], steps=[[1, 2, 3], [1, 2, 3]], first_ticks=[0, 3])
    assert [check.matches for check in rate_checks(actions, [own[0], [0.1, 0.045, 0.04]], own)] == [True]
    assert [check.used for check in rate_checks(actions, own, own)] == [0.09]


def seed(controlled: float | None, alone: float | None, changes: int = 1, better: str = "down") -> SeedResult:
    return SeedResult("clm-plain/sgd", "tuned", 100, changes, better, controlled, alone)


def verdict(*seeds: SeedResult) -> str:
    return cell_result(seeds).verdict


def test_without_a_change_a_cell_is_the_same() -> None:
    assert verdict(seed(2.0, 2.0, 0), seed(2.1, 2.1, 0)) == "same"
    assert verdict(seed(2.0, 2.1, 0), seed(2.1, 2.1, 0)) == "within noise", "no change, yet not the same bits"


def test_noise_is_two_standard_errors_or_half_the_range_of_the_controls() -> None:
    steady = cell_result([seed(2.1, 2.0), seed(2.11, 2.01), seed(2.12, 2.02)])
    assert steady.gain == pytest.approx(-0.1) and steady.error == pytest.approx(0, abs=1e-9)
    assert steady.noise == pytest.approx(0.01) and steady.verdict == "WORSE"
    wide = cell_result([seed(2.1, 2.0), seed(2.4, 2.3), seed(2.2, 2.1)])
    assert wide.noise == pytest.approx(0.15) and wide.verdict == "within noise"
    uneven = cell_result([seed(2.5, 2.0), seed(1.9, 2.0), seed(2.3, 2.0)])
    assert uneven.error is not None and uneven.noise == pytest.approx(2 * uneven.error)
    assert verdict(seed(1.9, 2.0), seed(1.91, 2.01)) == "better"
    assert verdict(seed(0.9, 0.8, better="up"), seed(0.9, 0.8, better="up")) == "better"


def test_one_changed_seed_is_not_judged() -> None:
    alone = cell_result([seed(3.0, 2.0)])
    assert alone.verdict == "one seed" and alone.error is None and alone.noise is None
    assert totals([seed(3.0, 2.0)])["tuned_one_seed"] == 1


def test_a_run_that_diverged_is_worse_than_any_that_ended() -> None:
    assert verdict(seed(None, 2.0)) == "WORSE"
    assert verdict(seed(2.0, None)) == "better"
    assert verdict(seed(None, None)) == "both diverged"
    assert verdict(seed(None, None), seed(1.9, 2.0), seed(1.9, 2.0)) == "better"
    assert verdict(seed(2.0, None), seed(None, 2.0)) == "WORSE"
    saved = cell_result([seed(2.0, None), seed(2.5, 2.0), seed(2.5, 2.0)])
    assert saved.table_row()["verdict"] == "WORSE (1 saved)"


def test_the_table_has_a_row_per_start_and_cell_and_the_totals_figures_per_start() -> None:
    tuned = [seed(2.1, 2.0), seed(2.1, 2.0), replace(seed(2.0, 2.0, 0), cell="grpo/adamw")]
    high = [replace(result, start="high", rates_checked=2, rates_wrong=1, same_place=3) for result in tuned[:2]]
    rows = [(row.start, row.cell, row.seeds) for row in cell_results([*tuned, *high])]
    assert rows == [("tuned", "clm-plain/sgd", 2), ("tuned", "grpo/adamw", 1), ("high", "clm-plain/sgd", 2)]
    figures = totals([*tuned, *high])
    assert (figures["tuned_cells"], figures["tuned_worse"], figures["tuned_better"]) == (2, 1, 0)
    assert figures["tuned_changes_per_1000_steps"] == 6.67
    assert (figures["rate_changes_not_matched"], figures["rate_changes_checked"]) == (2, 4)
    assert figures["most_rollbacks_to_one_step"] == 3


def test_a_pair_survives_a_results_file(tmp_path: Path) -> None:
    task = Task("clm-plain/sgd", "tuned", "clm_trainer.py", Case(seed=100), True)
    actions = Actions([change(2, 0.5)], 1, ["expired"], [[1, 2]], [0], {"data": "no data/repeated"}, 1)
    controlled = Run(task, 2.1234567890123, "loss", "down", [[0.1, 0.05]], 1.5, actions)
    alone = Run(replace(task, controlled=False), None, "", "", [[0.1, 0.1]], 1.0, error="diverged")
    pair = Pair(controlled, alone, [RateCheck(2, 0.5, 0.05, 0.05)])
    ResultsFile(tmp_path / "results.jsonl", TypeAdapter(Pair), {}).append(pair)
    assert ResultsFile(tmp_path / "results.jsonl", TypeAdapter(Pair), {}).rows == [pair]


def test_every_cell_has_a_tuned_rate(tmp_path: Path) -> None:
    tuned = read(SCRIPTS)
    assert [cell.name for cell in cells(starts=["tuned"]) if key(cell) not in tuned] == []
    with pytest.raises(ConfigError, match="not a table of tuned rates"):
        read(tmp_path)


def test_a_run_that_failed_is_in_no_figure() -> None:
    task = Task("clm-plain/sgd", "tuned", "clm_trainer.py", Case(steps=100), True)
    alone = Run(task, 2.0, "loss", "down", [], 1.0)
    good = Pair(Run(task, 2.0, "loss", "down", [], 1.0, Actions([change(2, 0.5)])), alone, [])
    failed = Pair(Run(task, None, "", "", [], 1.0, error="KeyError: 'x'"), alone, [])
    result = report([good, failed])
    assert result.figures["failed_with_controller"] == 1 and result.rows[0]["verdict"] == "WORSE (1 lost)"
    assert result.figures["tuned_changes_per_1000_steps"] == 10.0 and result.failures == [failed.line()]
    assert report([failed]).figures["tuned_changes_per_1000_steps"] is None, "not measured"
    assert "FAILED" in failed.line() and failed.result.gain is None


def played(kind: str, case: Case) -> Pair:
    script = next(candidate.script for candidate in KINDS if candidate.name == kind)
    return play_pair(Task(f"{kind}/{case.optimizer}", "tuned", str(SCRIPTS / f"{script}.py"), case, True), both=True)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("kind", ["clm-warmup", "nanogpt-cosine", "accelerate"])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "adafactor"])
def test_without_a_change_both_arms_are_the_same_training(kind: str, optimizer: str) -> None:
    recipe = next(candidate for candidate in KINDS if candidate.name == kind)
    case = Case(optimizer, 1e-3, recipe.schedule, 0.25, width=16, seed=100, steps=4)  # type: ignore[arg-type]
    result = played(kind, case)
    assert result.controlled.error == "" and result.alone is not None
    assert result.controlled.actions.changes == [] and result.same_bits
    rates = result.controlled.rates
    assert [len(steps) for steps in rates] == [4] and max(rates[0]) == pytest.approx(1e-3)
    measured_first = [] if kind.startswith("clm") else [0]  # `connect` evaluates once before the first step
    assert result.controlled.actions.steps == [[*measured_first, 1, 2, 3, 4]]
    if optimizer == "adamw":  # once for each script: it draws by its seed, whatever the optimizer is
        second = played(kind, replace(case, seed=101))
        assert second.controlled.final != result.controlled.final, "a seed is another training"


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("kind", "optimizer", "steps"), [("grpo", "sgd", [[1, 2, 3]]), ("two-trainers", "adamw", [[1], [1, 2]])]
)
def test_grpo_and_a_second_trainer_are_the_same_training_too(kind: str, optimizer: str, steps: list[list[int]]) -> None:
    recipe = next(candidate for candidate in KINDS if candidate.name == kind)
    case = Case(optimizer, 1e-4, recipe.schedule, width=16, seed=100, steps=3)  # type: ignore[arg-type]
    result = played(kind, case)
    assert result.controlled.error == "" and result.controlled.metric == "held-out reward" and result.same_bits
    assert result.controlled.actions.steps == steps, "one incarnation per trainer"
    assert [len(used) for used in result.controlled.rates] == [len(steps_of_trainer) for steps_of_trainer in steps], (
        "the warm-up does not count as training"
    )
    assert result.controlled.actions.first_ticks == [0, 1][: len(steps)]
    # Under β the evaluation's loss is the KL term, which rises as the policy learns: it must not stand for the run.
    assert result.controlled.actions.held_out == [["eval/loss"], ["eval/reward"]][-len(steps) :]
