"""The figures of `bench motion` from made-up logs, and the command line that it starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from oven_bench.training.motion_runs import BENCH, Result, figures, result_of, run
from oven_core.errors import ConfigError, ProcessError


def entry(kind: str, **data: object) -> str:
    return json.dumps({"type": kind, "data": data})


def log(*rewards: float, reason: str = "completed") -> list[str]:
    observed = [entry("Observation", metrics={"reward": 0.2, "eval/reward": value}) for value in rewards]
    between = [entry("Observation", metrics={"reward": 0.9}), entry("Receipt", status="applied")]
    return [
        *observed[:1],
        *between,
        entry("Receipt", status="rejected"),
        *observed[1:],
        entry("RunEnded", reason=reason),
    ]


def test_a_seeds_result_is_its_held_out_rewards_and_what_was_decided(tmp_path: Path) -> None:
    picture = tmp_path / "motion.png"
    found = result_of(3, log(0.3, 0.6, 0.5), 41.26, picture)
    assert found == Result(3, 0.3, 0.5, 0.6, 1, 41.3, "")
    picture.touch()
    assert result_of(3, log(0.3), 1, picture).picture == str(picture)


def test_a_run_that_was_cut_or_measured_nothing_has_no_result(tmp_path: Path) -> None:
    for lines, said in (
        (log(0.3, 0.5, reason="stopped"), "not completed"),
        (log(0.3)[:-1], "no RunEnded"),
        (log(), "no eval/reward"),
    ):
        with pytest.raises(ProcessError, match=said):
            result_of(4, lines, 1.0, tmp_path / "none")


def test_figures_count_seeds_that_went_up() -> None:
    found = figures(
        [Result(seed, 0.3, after, after, 0, 40.0 + seed, "") for seed, after in ((1, 0.5), (2, 0.2), (3, 0.4))]
    )
    assert (found["seeds"], found["up"], found["pictures"]) == (3, 2, 0)
    assert (found["median_gain"], found["smallest_gain"], found["largest_gain"]) == (0.1, -0.1, 0.2)
    assert found["most_cpu_seconds"] == 43.0


def test_a_stack_that_cannot_start_is_an_error_with_its_last_lines(tmp_path: Path) -> None:
    with pytest.raises(ProcessError, match="seed 1 ended with code"):
        run(1, tmp_path, ["--set", "recipe_options.policy=flow"])
    with pytest.raises(ConfigError, match="no seed"):
        BENCH.run(["--seeds", ""])
