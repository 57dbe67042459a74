"""The figures of `bench rates` from made-up results, its rule, and one tiny run of the recipe as the bench makes it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.support.attached import THIRD_PARTY
from tests.unit.learner.test_pretrain import TINY, text, write

from oven_bench.fixed_rules import PlateauOfLoss
from oven_bench.training.drawn_learning_rates import ARMS, episodes, figures, rows
from oven_bench.training.recipe_run import Episode, Result, run
from oven_core.protocol.messages import Observation

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]


def results(*draws: dict[str, float]) -> list[Result]:
    return [
        Result(Episode(arm, "drawn", seed, 10, "home", recipe="pretrain"), final, 3 if arm == "swarm" else 0, 1.0)
        for seed, draw in enumerate(draws, 1)
        for arm, final in draw.items()
    ]


ONE = {"tuned": 2.0, "swarm": 2.1, "alone": 3.0, "plateau": 2.5, "cosine": 2.4}
TWO = {"tuned": 2.0, "swarm": 2.0, "alone": 2.2, "plateau": 2.2, "cosine": 2.1}
THREE = {"tuned": 2.0, "swarm": 2.6, "alone": math.nan, "plateau": 2.8, "cosine": math.nan}


def test_regret_is_a_share_of_the_tuned_run_of_the_same_draw() -> None:
    result = figures(results(ONE, TWO, THREE))
    assert result["draws"] == 3
    assert result["median_regret_swarm"] == pytest.approx(0.05)
    assert (result["median_regret_alone"], result["median_regret_plateau"]) == (pytest.approx(0.5), pytest.approx(0.25))
    assert result["worst"] == result["worst_regret_swarm"] == pytest.approx(0.3)
    assert (result["not_finite_alone"], result["worst_regret_alone"]) == (1, None), "no number is the worst there is"
    assert (result["draws_better_than_alone"], result["draws_better_than_cosine"]) == (3, 3)
    assert result["interventions_swarm"] == 9
    assert all(value is None or isinstance(value, int | float) for value in result.values()), "one flat object"
    json.dumps(result, allow_nan=False)


def test_a_draw_that_lacks_an_arm_does_not_count_and_arms_can_be_left_out() -> None:
    assert figures(results(ONE, {"tuned": 2.0, "swarm": 9.0}))["draws"] == 1
    assert figures(results({"tuned": 2.0, "alone": 2.2}), ["alone"]) == {
        "draws": 1, "median_regret_alone": 0.1, "worst_regret_alone": 0.1, "not_finite_alone": 0,
    }  # fmt: skip


def test_rows_say_what_was_drawn() -> None:
    first, _, third = rows(results(ONE, TWO, THREE))
    assert first["seed"] == 1 and first["swarm"] == 2.1 and first["interventions"] == 3
    assert isinstance(first["factor"], float) and 1 / 30 <= first["factor"] <= 30
    assert third["alone"] is None


def test_all_arms_of_a_draw_begin_alike() -> None:
    made = episodes(range(1, 3), ARMS, 10, "home")
    assert [(e.seed, e.arm) for e in made[:5]] == [(1, arm) for arm in (*ARMS, "tuned")]
    assert {e.start for e in made if e.arm != "tuned"} == {"drawn"} and {e.recipe for e in made} == {"pretrain"}
    assert [e.arm for e in made if e.options] == ["cosine", "cosine"]


def seen(tick: int, **metrics: float) -> Observation:
    return Observation(incarnation=1, n=tick, tick=tick, step=tick, progress=0, metrics=metrics)


def test_the_plateau_of_a_loss_halves_when_it_no_longer_falls() -> None:
    rule = PlateauOfLoss(patience=3)
    assert not any(rule.look(seen(tick, loss=6 - tick / 10)) for tick in range(1, 20))
    flat = [rule.look(seen(tick, loss=4.0)) for tick in range(20, 50)]
    assert [("optimizer.lr_scale", 0.5)] in flat and [("optimizer.lr_scale", 0.25)] in flat


def test_an_arm_is_a_run_of_the_recipe(tmp_path: Path) -> None:
    corpus = write(tmp_path / "corpus", a__1=text(1), a__2=text(2), a__3=text(3))
    options = (*TINY.items(), ("corpus", corpus))
    alone = run(Episode("alone", "drawn", 101, 6, str(tmp_path), options=options, recipe="pretrain"))
    tuned = run(Episode("tuned", "tuned", 101, 6, str(tmp_path), options=options, recipe="pretrain"))
    assert 1 < alone.final < 12 and alone.interventions == 0
    assert tuned.final != alone.final
