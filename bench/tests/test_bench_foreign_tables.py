"""`bench foreign`: verdicts over seeds, the results file, and the search for tuned rates. No training here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from oven_bench.foreign.case import Case
from oven_bench.foreign.case_grid import cells
from oven_bench.foreign.controller_actions import Change, RateCheck, Reading
from oven_bench.foreign.paired_run import Pair
from oven_bench.foreign.script_run import DEFAULT, Run, Task, digest
from oven_bench.foreign.tuned_rates import SEEDS, Table, Tuning, best_rung, missing, model_of, read, settle, write
from oven_bench.foreign.verdicts import Played, row, rows, totals
from oven_bench.study import ResultsFile
from oven_core.errors import ConfigError

SCRIPTS = DEFAULT


def played(controlled: float | None, alone: float | None, changes: int = 1, better: str = "down") -> Played:
    return Played("clm-plain/sgd", "tuned", 100, changes, better, controlled, alone)


def verdict(*pairs: Played) -> str:
    return row(pairs).verdict


def test_without_a_change_a_cell_is_the_same() -> None:
    assert verdict(played(2.0, 2.0, 0), played(2.1, 2.1, 0)) == "same"
    assert verdict(played(2.0, 2.0, 0)) == "same"
    assert verdict(played(2.0, 2.1, 0), played(2.1, 2.1, 0)) == "within noise", "no change, yet not the same bits"


def test_noise_is_two_standard_errors_or_half_of_the_controls_range() -> None:
    steady = row([played(2.1, 2.0), played(2.11, 2.01), played(2.12, 2.02)])
    assert steady.gain == pytest.approx(-0.1) and steady.error == pytest.approx(0, abs=1e-9)
    assert steady.noise == pytest.approx(0.01) and steady.verdict == "WORSE"
    wide = row([played(2.1, 2.0), played(2.4, 2.3), played(2.2, 2.1)])
    assert wide.noise == pytest.approx(0.15) and wide.verdict == "within noise"
    uneven = row([played(2.5, 2.0), played(1.9, 2.0), played(2.3, 2.0)])
    assert uneven.noise == pytest.approx(2 * uneven.error) and uneven.verdict == "within noise"  # type: ignore[operator]
    assert verdict(played(1.9, 2.0), played(1.91, 2.01)) == "better"
    assert verdict(played(0.9, 0.8, better="up"), played(0.9, 0.8, better="up")) == "better"
    assert verdict(played(0.7, 0.8, better="up"), played(0.7, 0.8, better="up")) == "WORSE"


def test_one_seed_that_was_changed_is_not_judged() -> None:
    alone = row([played(3.0, 2.0)])
    assert alone.verdict == "one seed" and alone.error is None and alone.noise is None
    assert totals([played(3.0, 2.0)])["tuned_one_seed"] == 1


def test_a_run_that_diverged_is_worse_than_any_that_ended() -> None:
    assert verdict(played(None, 2.0)) == "WORSE"
    assert verdict(played(2.0, None)) == "better"
    assert verdict(played(None, None)) == "both diverged"
    assert verdict(played(None, None), played(1.9, 2.0), played(1.9, 2.0)) == "better"
    assert verdict(played(2.0, None), played(None, 2.0)) == "WORSE"
    saved = row([played(2.0, None), played(2.5, 2.0), played(2.5, 2.0)])
    assert saved.verdict == "WORSE" and saved.table_row()["verdict"] == "WORSE (1 saved)"


def test_the_table_has_a_row_per_start_and_cell_and_the_totals_figures_per_start() -> None:
    tuned = [played(2.1, 2.0), played(2.1, 2.0), replace(played(2.0, 2.0, 0), cell="grpo/adamw")]
    high = [replace(one, start="high", receipts=2, mismatches=1, same_place=3) for one in tuned[:2]]
    found = rows([*tuned, *high])
    assert [(one.start, one.cell, one.seeds) for one in found] == [
        ("tuned", "clm-plain/sgd", 2), ("tuned", "grpo/adamw", 1), ("high", "clm-plain/sgd", 2),
    ]  # fmt: skip
    figures = totals([*tuned, *high])
    assert (figures["tuned_cells"], figures["tuned_worse"], figures["tuned_better"]) == (2, 1, 0)
    assert figures["tuned_changes_per_1000_steps"] == 6.67
    assert (figures["rate_changes_not_matched"], figures["rate_changes_checked"]) == (2, 4)
    assert figures["most_rollbacks_to_one_step"] == 3


def test_a_pair_survives_a_results_file(tmp_path: Path) -> None:
    task = Task("clm-plain/sgd", "tuned", "clm_trainer.py", Case(seed=100), True)
    change = Change(2, 2, 1, "optimizer.lr_scale", 1.0, 0.5, "lr", "why")
    reading = Reading([change], 1, ["expired"], [[1, 2]], [0], {"data": "no data/repeated"}, 1)
    controlled = Run(task, 2.1234567890123, "loss", "down", [[0.1, 0.05]], 1.5, reading)
    alone = Run(replace(task, controlled=False), None, "", "", [[0.1, 0.1]], 1.0, error="diverged")
    pair = Pair(controlled, alone, [RateCheck(2, 0.5, 0.05, 0.05)])
    ResultsFile(tmp_path / "results.jsonl", TypeAdapter(Pair), {}).append(pair)
    assert ResultsFile(tmp_path / "results.jsonl", TypeAdapter(Pair), {}).rows == [pair]


def test_a_scripts_digest_is_of_its_code_and_of_what_it_imports_beside_it(tmp_path: Path) -> None:
    one, other = tmp_path / "one.py", tmp_path / "other.py"
    one.write_text("from other import x\n")
    other.write_text("x = 1\n")
    before = digest(one)
    one.write_text("# said\nfrom other import x\n")
    assert digest(one) == before
    other.write_text("x = 2\n")
    assert digest(one) != before


def finals(*of: float | None) -> dict[int, float | None]:
    return dict(zip(SEEDS, of, strict=True))


def test_the_ladder_is_widened_while_its_edge_is_best() -> None:
    assert missing({}, "down") == [(rung, seed) for rung in (-1, 0, 1, 2) for seed in SEEDS]
    tried = {-1: finals(3, 3), 0: finals(2, 2), 1: finals(2.5, 2.5), 2: finals(None, 9)}
    assert missing(tried, "down") == [] and best_rung(tried, "down") == 0
    assert missing(tried | {0: {SEEDS[0]: 2.0}}, "down") == [(0, SEEDS[1])]
    assert missing(tried | {-1: finals(1, 1)}, "down") == [(-2, seed) for seed in SEEDS]
    assert missing(tried | {2: finals(1, 1)}, "down") == [(3, seed) for seed in SEEDS]
    assert best_rung(tried, "up") == -1, "a rate at which one seed diverged is never the best"
    wide = {rung: finals(rung, rung) for rung in range(-1, 7)}
    assert missing(wide, "up") == [], "enough was tried"
    assert best_rung({0: finals(1, 1), 1: finals(1, 1)}, "up") == 0, "of two as good the lower"


def test_every_cell_has_a_tuned_rate_between_others_that_are_worse() -> None:
    tuned = read(SCRIPTS / "tuned.json")
    found = {cell.name: tuned.of(model_of(cell, SCRIPTS)) for cell in cells(starts=["tuned"])}
    assert [name for name, one in found.items() if one is None or one.rate is None] == []
    assert [name for name, one in found.items() if one and one.on_edge] == []


def test_the_file_of_tuned_rates_is_read_back(tmp_path: Path) -> None:
    cell = cells(["clm-plain/sgd"])[0]
    model = model_of(cell, SCRIPTS)
    one = Tuning(model=model)
    for rung, final in ((-1, 3.0), (0, 2.0), (1, 2.5), (2, None)):
        for seed in SEEDS:
            one.add(rung, seed, final, "" if final is None else "down", 1.0)
    settle(one)
    write(Table(models=[one]), tmp_path / "tuned.json")
    again = read(tmp_path / "tuned.json")
    assert again.models == [one] and again.rate(model) == 0.1 and again.seconds() == 8
    assert again.rate(model.model_copy(update={"width": 8})) is None
    (tmp_path / "tuned.json").write_text("{}x")
    with pytest.raises(ConfigError, match="delete it and run --tune"):
        read(tmp_path / "tuned.json")
    assert read(tmp_path / "none.json") == Table()
