"""Made-up agents of known intent through the real mesh: who loses their voice, who keeps it, and how soon."""

import json
from statistics import fmean

import pytest

from oven_bench.mesh.reputation import ALWAYS_WRONG, BENCH, CONTROLS, KINDS, drifting, episode
from oven_bench.mesh.simulated_swarm import RUN, Swarm
from oven_core.mesh.reputation import outcomes_until_silent
from oven_core.protocol.rules import Rules
from oven_runs.log.replay import replay

SEEDS = (1, 2, 3, 4, 5)


@pytest.mark.parametrize("kind", ALWAYS_WRONG)
def test_who_is_always_wrong_is_not_heard_beyond_the_bound(kind: str) -> None:
    """A pair that backs one another too, and one that hides behind a low confidence."""
    bound = outcomes_until_silent(KINDS[kind][0].confidence, Rules(), between=2)
    assert bound is not None
    runs = [episode(kind, seed, rounds=20) for seed in SEEDS]
    for found in runs:
        assert found.silent_after is not None and found.silent_after <= bound
        assert found.later < 0.15, "forgetting gives it a turn now and then, and the next outcome takes it back"
    assert fmean(found.worth for found in runs) < 0.3


def test_the_honest_keep_their_reputation() -> None:
    found = [episode("adversary", seed, rounds=25) for seed in SEEDS]
    assert fmean(one.honest for one in found) > 1 and fmean(one.honest_silent for one in found) < 0.05


@pytest.mark.parametrize("kind", ["coin", "lucky", "freerider"])
def test_neither_luck_nor_agreeing_with_the_good_carries_for_ever(kind: str) -> None:
    assert fmean(episode(kind, seed, rounds=40).worth for seed in SEEDS) < 0.25


def test_only_controls_see_through_a_metric_that_improves_anyway() -> None:
    """A limit that is documented: without them whoever acts is credited with the drift."""
    assert fmean(drifting(0.0, seed) for seed in SEEDS) > 1.5
    assert fmean(drifting(CONTROLS, seed) for seed in SEEDS) < 0.5


def test_a_swarm_is_the_same_again_and_replays() -> None:
    logs = []
    for _ in range(2):
        swarm = Swarm(KINDS["pair"], seed=7)
        for _ in range(4):
            swarm.turn("pair1")
        logs.append([entry.data for entry in swarm.log.events])
        assert swarm.mesh.divergence is None and replay(swarm.log.events, RUN).same
    assert logs[0] == logs[1]


def test_the_bench_prints_one_flat_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert BENCH.run(["--seeds", "2", "--rounds", "12", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["outcomes_until_silent_adversary"] <= found["bound_adversary"]
    assert all(not isinstance(value, dict | list) for value in found.values())
