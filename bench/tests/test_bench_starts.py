"""The bench's figures from made-up results, and the rules that the swarm is held against."""

from __future__ import annotations

from functools import partial

import pytest

from oven_bench.fixed_rules import Alone, Blind, Plateau, RuleLink
from oven_bench.training.drawn_starts import ARMS, figures, rows
from oven_bench.training.recipe_run import Episode, Result
from oven_core.protocol.messages import ActuatorSpec, Observation, RunStarted


def results(*draws: dict[str, float]) -> list[Result]:
    return [
        Result(Episode(arm, "drawn", seed, 10, "home"), accuracy, 2 if arm == "swarm" else 0, 1.0)
        for seed, draw in enumerate(draws, 1)
        for arm, accuracy in draw.items()
    ]


def test_regret_is_paired_and_the_worst_loss_is_against_nobody() -> None:
    first = {"tuned": 0.9, "swarm": 0.88, "alone": 0.5, "blind": 0.7, "plateau": 0.4}
    two = {"tuned": 0.95, "swarm": 0.90, "alone": 0.93, "blind": 0.9, "plateau": 0.93}
    result = figures(results(first, two))
    assert result["draws"] == 2
    assert result["median_regret_swarm"] == pytest.approx(0.035)
    assert result["median_regret_alone"] == pytest.approx(0.21)
    assert result["worst_loss"] == pytest.approx(0.03)
    assert (result["draws_better"], result["draws_worse"]) == (1, 1)
    assert all(isinstance(value, int | float) for value in result.values()), "one flat object"
    assert rows(results(first, two))[1]["swarm"] == 0.9


def test_a_draw_that_lacks_an_arm_does_not_count() -> None:
    whole = dict.fromkeys(ARMS, 0.5)
    result = figures(results(whole, {"tuned": 0.9, "swarm": 0.1}))
    assert result["draws"] == 1


def started() -> RunStarted:
    mixture = ActuatorSpec(name="data.mixture", kind="simplex", choices=("a", "b"), value={"a": 1.0, "b": 0.0})
    return RunStarted(incarnation=1, n=0, recipe="r", actuators=(mixture,))


def seen(tick: int, **metrics: float) -> Observation:
    return Observation(incarnation=1, n=tick, tick=tick, step=tick, progress=0, metrics=metrics)


def test_the_blind_schedule_speaks_once_and_looks_at_nothing() -> None:
    link = RuleLink(Blind(0.5))
    link.send(started)
    link.send(partial(seen, 1))
    link.send(partial(seen, 2, reward=0.9))
    assert link.changes == [(1, "optimizer.lr_scale", 0.5), (1, "data.mixture", {"a": 0.5, "b": 0.5})]


def test_the_plateau_rule_halves_after_its_patience_and_not_while_it_rises() -> None:
    rule = Plateau(patience=3)
    assert not any(rule.look(seen(t, reward=t / 10)) for t in range(1, 8))
    flat = [rule.look(seen(t, reward=0.7)) for t in range(8, 30)]
    assert [("optimizer.lr_scale", 0.5)] in flat and [("optimizer.lr_scale", 0.25)] in flat


def test_nobody_changes_nothing() -> None:
    assert Alone().look(seen(1, reward=0.0)) == []
